"""The life of the operator's process: it stands by, is elected, acts, and hands over."""

import asyncio
import logging
import os
import signal
import socket
import uuid
from collections.abc import Coroutine
from typing import Any, Final, NoReturn

import kopf

from megatron_operator.controller.api_client import ApiClient
from megatron_operator.controller.config_source import ConfigSource
from megatron_operator.controller.fence import Fence
from megatron_operator.controller.handlers import Operator, kopf_settings, log_end, register
from megatron_operator.controller.health import Health
from megatron_operator.controller.leader import LeaderElector, LeaseLostError
from megatron_operator.controller.plan_worker import PlanWorker
from megatron_operator.controller.settings import Settings
from megatron_operator.controller.webhook import Webhook

log = logging.getLogger(__name__)

LAST_WATCHES: Final = 3.0
"""Seconds for kopf to end its watches once the Lease is released."""
LAST_REVIEWS: Final = 3.0
"""Seconds from the signal for which reviews are answered at least: a pod that ends gets some for a moment."""


class OperatorProcess:
    """One replica. Without leader election it acts at once."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._fence = Fence()
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._election: asyncio.Task[None] | None = None
        self._elector: LeaderElector | None = None
        self._operator: Operator | None = None
        self._webhook: Webhook | None = None
        self._last_review = 0.0
        """When the webhook may end, on the clock of the event loop; set by the signal."""
        # A review has less time than a process may take to start on a busy node.
        self._reviews = PlanWorker(idle_seconds=None)
        """A worker of its own: a review must not wait for the recipes that are being reconciled."""

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT. Ends the process when the Lease is lost."""
        self._handle_signals()
        settings = self.settings
        api, election_api = await ApiClient.connect(self._fence), await ApiClient.connect()
        config = ConfigSource(api, settings)
        if settings.leader_elect:
            self._elector = LeaderElector(
                election_api,
                self._fence,
                namespace=settings.namespace,
                name=settings.lease_name,
                identity=_identity(),
                times=settings.lease_times,
            )
        self._serve(config)
        try:
            if await self._acquire():
                await self._act(api, config)
            if self._webhook is not None:
                await asyncio.sleep(self._last_review - asyncio.get_running_loop().time())
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._reviews.stop()
            await api.close()
            await election_api.close()

    def _serve(self, config: ConfigSource) -> None:
        """Start what a standby serves too: probes and the webhook."""
        settings = self.settings
        if settings.liveness_port:
            self._start(Health(settings.liveness_port, self._alive, self._ready).run(), "health")
        if settings.webhook_port:
            self._webhook = Webhook(config, self._reviews, settings)
            self._start(self._webhook.run(), "webhook")

    def _start(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(coroutine, name=name)
        task.add_done_callback(log_end)
        self._tasks.append(task)

    async def _acquire(self) -> bool:
        """Wait for the leadership; False when the process is stopped before."""
        if self._elector is None:
            self._fence.open()
            return True
        log.info("%s stands by", self._elector.identity)
        self._election = asyncio.create_task(self._elector.acquire(), name="election")
        stopping = asyncio.create_task(self._stopping.wait(), name="stopping")
        await asyncio.wait((self._election, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if self._stopping.is_set():
            self._election.cancel()
            await asyncio.gather(self._election, return_exceptions=True)
            await self._elector.release()
            return False
        self._election.result()
        return True

    async def _act(self, api: ApiClient, config: ConfigSource) -> None:
        """Be the leader: act on recipes until the process is stopped, then hand over."""
        if self._elector is not None:
            self._election = asyncio.create_task(_hold(self._elector), name="lease")
        self._operator = Operator(self.settings, api, config)
        self._operator.start()
        ready, stop = asyncio.Event(), asyncio.Event()
        watching = asyncio.create_task(self._watch(self._operator, ready, stop), name="watches")
        # kopf has replaced the signal handlers when it is ready; its own would end the watches first.
        await _first(watching, ready.wait())
        self._handle_signals()
        await _first(watching, self._stopping.wait())
        await self._operator.stop()
        if self._elector is not None and self._election is not None:
            self._election.cancel()
            await asyncio.gather(self._election, return_exceptions=True)
            await self._elector.release()
        self._fence.close()
        stop.set()
        await asyncio.wait([watching], timeout=LAST_WATCHES)
        # Another replica is already elected: it does not wait for a collector.
        await self._operator.send_last_traces()
        if watching.done():
            watching.result()

    async def _watch(self, operator: Operator, ready: asyncio.Event, stop: asyncio.Event) -> None:
        registry = kopf.OperatorRegistry()
        register(registry, operator)
        namespaces = self.settings.watch_namespaces
        await kopf.operator(
            registry=registry,
            settings=kopf_settings(clusterwide=not namespaces),
            standalone=True,
            clusterwide=not namespaces,
            namespaces=namespaces,
            ready_flag=ready,
            stop_flag=stop,
        )

    def _alive(self) -> str | None:
        """What has ended that must not; the kubelet then restarts the container."""
        ended = [task.get_name() for task in self._tasks if task.done()]
        election = self._election
        if election is not None and election.done() and not election.cancelled() and election.exception():
            ended.append(election.get_name())
        if self._operator is not None and not self._operator.alive():
            ended.append("a task of the operator")
        return f"ended: {', '.join(ended)}" if ended else None

    def _ready(self) -> str | None:
        """Why a rollout must not count on this replica yet."""
        if self._elector is not None and not self._elector.reached:
            return "the Lease could not be read yet"
        if self._webhook is not None and not self._webhook.listening:
            return "the webhook does not listen yet"
        return self._alive()

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)

    def _stop(self) -> None:
        if self._webhook is not None:
            log.info("the process is to end; reviews are answered for %.0f s more", LAST_REVIEWS)
        self._last_review = asyncio.get_running_loop().time() + LAST_REVIEWS
        self._stopping.set()


async def _hold(elector: LeaderElector) -> None:
    """Renew the Lease; end the process when it is lost."""
    end_process(await elector.hold())


def end_process(lost: LeaseLostError) -> NoReturn:
    """End at once, as users of client-go do: nothing that this process still runs may act as the leader.

    It keeps nothing that must persist, and the kubelet starts it again as a standby.
    """
    log.critical("the leader's lease is lost (%s); this process ends", lost)
    logging.shutdown()
    os._exit(1)


async def _first(task: "asyncio.Task[None]", other: Coroutine[Any, Any, object]) -> None:
    """Wait until one of both is done; only `other` is cancelled."""
    second = asyncio.ensure_future(other)
    await asyncio.wait((task, second), return_when=asyncio.FIRST_COMPLETED)
    second.cancel()


def _identity() -> str:
    """Unique for each process; begins with the name of the pod, for whoever reads the Lease."""
    return f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4()}"
