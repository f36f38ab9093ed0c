"""Plans recipes in the planning processes, and remembers which ones exceed its limits."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from megatron_operator.api.errors import InvalidRecipeError, PlanningLimitError, described
from megatron_operator.controller.api_client import EXPECTED_ERRORS
from megatron_operator.controller.config_source import RECENT, ConfigSource
from megatron_operator.controller.plan_workers import PlanWorkers
from megatron_operator.lifecycle.desired import (
    Config,
    DesiredState,
    can_continue_with,
    desired_state,
    planning_input,
)
from megatron_operator.lifecycle.status_builder import RecipeKey, StatusBuilder

log = logging.getLogger(__name__)

PATIENCE: Final = 0.5
"""Seconds for which a reconcile waits for a plan, once; it usually takes some thousandths."""


@dataclass(frozen=True, slots=True, eq=False)
class _Version:
    """What has to change before a recipe that exceeded the limits is planned again."""

    uid: str
    generation: int
    config: Config

    def same(self, other: "_Version") -> bool:
        return (self.uid, self.generation) == (other.uid, other.generation) and self.config is other.config


@dataclass(frozen=True, slots=True)
class _Pending:
    request: StatusBuilder
    config: Config
    plan: asyncio.Task[DesiredState]


class Planning:
    """Plans by key. `ready` is called when a plan is made for which a reconcile did not wait."""

    def __init__(self, config: ConfigSource, worker: PlanWorkers, ready: Callable[[RecipeKey], None]) -> None:
        self._config = config
        self._worker = worker
        self._ready = ready
        self._pending: dict[RecipeKey, _Pending] = {}
        self._exceeded: dict[RecipeKey, tuple[_Version, PlanningLimitError]] = {}
        self._changed: dict[RecipeKey, float] = {}

    def recipe_changed(self, key: RecipeKey) -> None:
        """The recipe is new or was edited: it is planned with a configuration that is read from now on.

        Who changes the platform and then applies a recipe expects the one to hold for the other.
        """
        self._changed[key] = time.monotonic()

    async def start(self) -> None:
        """Start a process before a recipe needs it: what it imports takes longer than a hundred plans."""
        try:
            await self._worker.call(bool, config=await self._config.read())
        except (InvalidRecipeError, *EXPECTED_ERRORS) as error:
            log.info("the planning process is started when it is needed: %s", described(error))

    async def desired(self, status: StatusBuilder) -> DesiredState | None:
        """What should exist for the recipe; None while it is planned, until `ready` is called.

        Raises InvalidRecipeError when it cannot run, PlanningLimitError when planning it exceeds the limits,
        ApiError when the configuration cannot be read.
        """
        key = status.key
        config = await self._config.read(since=self._changed.get(key, 0.0), age=RECENT)
        version = _Version(status.uid, status.generation, config)
        if key in self._exceeded:
            exceeded, error = self._exceeded[key]
            if exceeded.same(version):
                raise error
            del self._exceeded[key]
        plan, new = self._plan(key, planning_input(status), config)
        if new:
            await asyncio.wait({plan}, timeout=PATIENCE)
            if not plan.done():
                plan.add_done_callback(lambda made: None if made.cancelled() else self._ready(key))
        if not plan.done():
            return None
        self._pending.pop(key, None)
        try:
            return plan.result()
        except PlanningLimitError as error:
            self._exceeded[key] = version, error
            raise

    @property
    def revision(self) -> int:
        """Changes with platform and catalog."""
        return self._config.revision

    async def can_continue_on(self, status: StatusBuilder, count: int) -> bool:
        """Whether the run can continue on `count` accelerators with its batch size and its checkpoints."""
        config = await self._config.read(age=RECENT)
        namespace = status.key.namespace
        try:
            desired = await self._worker.call(
                _on_count, planning_input(status), count, config=config, namespace=namespace
            )
        except InvalidRecipeError:
            return False
        return can_continue_with(status, desired)

    def forget(self, key: RecipeKey) -> None:
        """Drop what is known of a recipe that no longer exists."""
        self._changed.pop(key, None)
        self._exceeded.pop(key, None)
        if (pending := self._pending.pop(key, None)) is not None:
            pending.plan.cancel()

    def _plan(
        self, key: RecipeKey, request: StatusBuilder, config: Config
    ) -> tuple[asyncio.Task[DesiredState], bool]:
        """The plan of this request that is being made, or a new one, and whether it is new."""
        pending = self._pending.get(key)
        if pending is not None:
            if pending.config is config and pending.request == request:
                return pending.plan, False
            pending.plan.cancel()
        call = self._worker.call(desired_state, request, config=config, namespace=key.namespace)
        plan: asyncio.Task[DesiredState] = asyncio.ensure_future(call)
        self._pending[key] = _Pending(request, config, plan)
        return plan, True


def _on_count(request: StatusBuilder, count: int, config: Config) -> DesiredState:
    return desired_state(request, config, count)
