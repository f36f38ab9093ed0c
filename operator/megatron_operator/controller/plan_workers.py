"""The planning processes of the operator: a recipe that plans for long keeps no other namespace waiting."""

import asyncio
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakValueDictionary

from megatron_operator.controller.plan_worker import PlanWorker
from megatron_operator.lifecycle.desired import Config
from megatron_operator.planner.limits import PlanningLimits

PROCESSES: Final = 2
"""Number of planning processes. Each takes 50 MB, and up to the limit of a plan for as long as it plans."""


class PlanWorkers:
    """Executes calls in a few processes. One that is needed only while others are busy is started only then.

    A namespace has one call in the queue or in a process at most: its recipes wait for each other, and those
    of other namespaces for at most one call of it, where every process is busy.
    """

    def __init__(self, limits: PlanningLimits | None = None, processes: int = PROCESSES) -> None:
        self._workers = [PlanWorker(limits) for _ in range(processes)]
        self._busy: set[PlanWorker] = set()
        self._turn = asyncio.Semaphore(processes)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def pids(self) -> list[int]:
        """The processes that run."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    async def call(
        self, function: Callable[..., Any], *arguments: Any, config: Config | None = None, namespace: str = ""
    ) -> Any:
        """As `PlanWorker.call`, with the same errors; calls of one `namespace` one after another."""
        turn = self._turns.setdefault(namespace, asyncio.Lock())
        async with turn, self._turn:
            # The first that is idle, so that one process has most of the plans that were made before.
            worker = next(each for each in self._workers if each not in self._busy)
            self._busy.add(worker)
            try:
                return await worker.call(function, *arguments, config=config)
            finally:
                self._busy.discard(worker)

    async def stop(self) -> None:
        """End the processes."""
        for worker in self._workers:
            await worker.stop()
