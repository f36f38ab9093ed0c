"""The rendezvous of the pods: membership is fixed (node rank = pod index), only the generation changes.

A handler for torch's elastic agent. Every pod whose ranks are stopped joins the current generation; when all
have joined, no rank runs, so node 0 chooses the checkpoint and announces it with the port for the process
group. A pod that loses a rank, finds that it is a replacement, or misses the heartbeat of another pod starts
a new generation, and all pods meet again.
"""

import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from megatron_contract.exit_codes import ExitCode
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from megatron_trainer.listening import free_port
from megatron_trainer.rendezvous.state import GenerationPlan, RunEndedError, State
from megatron_trainer.rendezvous.store import GangStore, StoreLostError
from megatron_trainer.telemetry.incidents import FailureKind, FailureReport
from megatron_trainer.termination import Ending

_POLL_SECONDS = 0.1
_HEARTBEAT_SECONDS = 1.0
_LEAVE_SECONDS = 10.0
# A pod without a heartbeat for this long is considered lost, and the others stop waiting for its ranks.
SILENCE_SECONDS = 15.0


@dataclass
class GangRendezvous(RendezvousHandler):
    """Static membership over a GangStore.

    `prepare` runs on node 0 only, when all pods have joined and no rank runs. It is given the gang's state
    and whether a pod has not started any rank yet, and may raise RunEndedError. `interruption` returns how
    this pod must end while it waits, None if it need not. `completed` is given the report of the generation
    and returns how the run ends if nothing is left to do; it is used on node 0 only. `timeout` is in seconds.
    """

    store: GangStore
    run_id: str
    node_rank: int
    nodes: int
    master_addr: str
    timeout: float
    prepare: Callable[[State, bool], GenerationPlan]
    interruption: Callable[[], Ending | None]
    log: Callable[[str], None]
    completed: Callable[[FailureReport | None], Ending | None] = lambda _report: None
    generation: int = 0
    plan: GenerationPlan | None = None
    unexplained: FailureReport | None = None
    """On node 0: the loss of a peer after which the same pods met again, so that no pod was the peer."""
    incarnation: str = field(default_factory=lambda: uuid.uuid4().hex)
    _started: int = 0
    _master: str | None = None
    _heartbeats: int = 0
    _heartbeat_at: float = 0.0
    _listened_at: float = 0.0
    _heard: dict[int, tuple[str, float]] = field(default_factory=dict)

    # The interface of torch's RendezvousHandler.

    def get_backend(self) -> str:
        """The name of this kind of rendezvous."""
        return "megatron-gang"

    def get_run_id(self) -> str:
        """The run's identifier, which all of its pods share."""
        return self.run_id

    @property
    def use_agent_store(self) -> bool:
        """Whether ranks use the launcher's store. They do not: each generation has its own."""
        return False

    def is_closed(self) -> bool:
        """Never: the gang's state ends a run."""
        return False

    def set_closed(self) -> None:
        """Do nothing: the gang's state ends a run."""

    def shutdown(self) -> bool:
        """Disconnect from the gang's store. Returns True."""
        self.store.disconnect()
        return True

    def num_nodes_waiting(self) -> int:
        """Return 1 if this pod's generation is over, else 0."""
        return int(self.poll().generation != self.generation)

    def next_rendezvous(self) -> RendezvousInfo:
        """Meet the other pods in the current generation. This pod's ranks must be stopped.

        Raises RunEndedError if the run has ended, if this pod must stop, or if the others have not joined
        within `timeout`.
        """
        deadline = time.monotonic() + self.timeout
        while True:
            try:
                plan = self._join(deadline)
            except StoreLostError as error:
                self.log(f"rendezvous: {error}")
                self.store.disconnect()
                self._require_time(deadline, "the Master pod's store")
                continue
            if plan is not None:
                self.plan = plan
                self._started = self.generation
                # While DNS is slow, a lookup delays heartbeats. Those of node 0 are not checked.
                address = self.store.host_address or _address(self.master_addr)
                info = RendezvousStoreInfo(address, plan.master_port)
                return RendezvousInfo(None, self.node_rank, self.nodes, info)

    def _join(self, deadline: float) -> GenerationPlan | None:
        """Join the current generation and wait for its plan. None if another generation started meanwhile."""
        if not self.store.connected:
            self._connect(deadline)
        state = self.store.state()
        self.generation = state.generation
        self._raise_if_ended(state)
        key = f"joined/{state.generation}"
        self.store.set(f"{key}/{self.node_rank}", "again" if self._started else "new")
        self.log(
            f"generation {state.generation} ({state.why}): joined as node {self.node_rank} of {self.nodes}"
        )
        if self.node_rank == 0 and (ending := self.completed(state.report)):
            # Pods that have completed do not join, also not again; those that join read the verdict.
            self.end_run(ending)
            raise RunEndedError(ending)
        while True:
            state = self.poll()
            self._raise_if_ended(state)
            if state.generation != self.generation:
                return None
            text = self.store.get(f"plan/{self.generation}")
            if text is not None:
                self._master = self.store.get("member/0")
                return GenerationPlan.loads(text)
            if self.node_rank == 0 and self.store.reached(key, self.nodes):
                new, state = "new" in self.store.children(key).values(), self.store.state()
                plan = replace(self._prepare_plan(state, new), master_port=free_port())
                report = state.report
                lost = report is not None and report.kind is FailureKind.POD and report.node_rank is None
                self.unexplained = report if lost and not new else None
                # Returned at once: another pod may already have started the generation after this one.
                text = self.store.set_if_absent(f"plan/{self.generation}", plan.dumps())
                self._master = self.incarnation
                return GenerationPlan.loads(text)
            self._require_time(deadline, f"all {self.nodes} pods at generation {self.generation}")
            self.store.wait(_POLL_SECONDS)

    def _prepare_plan(self, state: State, new: bool) -> GenerationPlan:
        try:
            return self.prepare(state, new)
        except RunEndedError as ended:
            self.end_run(ended.ending)
            raise

    def _connect(self, deadline: float) -> None:
        """Connect to the store and start a new generation if this pod or the Master pod was replaced."""
        self.store.connect(deadline, lambda: self.interruption() is not None)
        self._heard.clear()
        master = self.store.get("member/0")
        known = self.store.set_if_absent(f"member/{self.node_rank}", self.incarnation)
        if known != self.incarnation:
            self.store.set(f"member/{self.node_rank}", self.incarnation)
            replaced = FailureReport(FailureKind.POD, f"node {self.node_rank} was replaced", self.node_rank)
            state = self.store.state()
            # The others may already wait in a generation that can include this pod.
            waiting = self.store.get(f"plan/{state.generation}") is None
            self.store.advance(max(state.generation - waiting, self.generation), replaced)
        elif self.generation:
            report = FailureReport(FailureKind.STORE, f"node {self.node_rank} lost the store", self.node_rank)
            if self.node_rank and master != self._master:
                report = FailureReport(FailureKind.POD, "node 0 was replaced", 0)
            self.store.advance(
                self.generation, replace(report, detected_at=self.store.lost_at or report.detected_at)
            )
        self.store.lost_at = None

    def _raise_if_ended(self, state: State) -> None:
        if state.verdict is not None:
            raise RunEndedError(state.verdict)
        self._raise_if_interrupted()

    def _raise_if_interrupted(self) -> None:
        if ending := self.interruption():
            raise RunEndedError(ending)

    def _require_time(self, deadline: float, what: str) -> None:
        self._raise_if_interrupted()
        if time.monotonic() >= deadline:
            raise RunEndedError(
                Ending(ExitCode.PEER_LOST, f"timed out after {self.timeout:.0f} s at the rendezvous: {what}")
            )

    def poll(self) -> State:
        """Return the gang's state. Sends this pod's heartbeat; node 0 also checks those of the others.

        Raises StoreLostError.
        """
        now = time.monotonic()
        if now - self._heartbeat_at >= _HEARTBEAT_SECONDS:
            self._set_with_heartbeat({}, now)
        if self.node_rank == 0 and now - self._listened_at >= _HEARTBEAT_SECONDS:
            self._listened_at = now
            self._check_heartbeats(now)
        return self.store.state()

    def share(self, key: str, value: str) -> None:
        """Set a key of the store, which counts as a heartbeat. Raises StoreLostError."""
        self._set_with_heartbeat({key: value}, time.monotonic())

    def _set_with_heartbeat(self, values: dict[str, str], now: float) -> None:
        self._heartbeat_at = now
        self._heartbeats += 1
        heartbeat = f"{self.incarnation}/{self._heartbeats}"
        self.store.set_all(values | {f"beat/{self.node_rank}": heartbeat})

    def _check_heartbeats(self, now: float) -> None:
        heartbeats = self.store.children("beat")
        for rank in range(1, self.nodes):
            heartbeat = heartbeats.get(str(rank))
            if heartbeat is None:
                continue
            last, since = self._heard.get(rank, ("", now))
            if heartbeat != last:
                self._heard[rank] = (heartbeat, now)
            elif now - since > SILENCE_SECONDS and self._started == self.generation:
                self._heard[rank] = (heartbeat, now)
                report = FailureReport(
                    FailureKind.POD, f"no heartbeat from node {rank} for {SILENCE_SECONDS:.0f} s", rank
                )
                self.store.advance(self.generation, report)

    def advance(self, report: FailureReport) -> None:
        """Start a new generation, unless one has started. A lost store is handled at the next rendezvous."""
        try:
            self.store.advance(self.generation, report)
        except StoreLostError as error:
            self.log(f"cannot start a new generation yet: {error}")

    def end_run(self, verdict: Ending) -> None:
        """End the run in all pods, as far as the store can be reached."""
        try:
            self.store.end_run(verdict)
        except StoreLostError as error:
            self.log(f"cannot end the run in the other pods: {error}")

    def leave(self) -> None:
        """Leave the gang at the end of the run.

        Node 0 waits a little, so that the others read the verdict.
        """
        deadline = time.monotonic() + _LEAVE_SECONDS
        try:
            self.store.set(f"left/{self.node_rank}", self.incarnation)
            while self.node_rank == 0 and not self.store.reached("left", self.nodes):
                if time.monotonic() >= deadline:
                    break
                self.store.wait(_POLL_SECONDS)
        except StoreLostError as error:
            self.log(f"the store is lost: {error}")

    def mark(self, what: str) -> None:
        """Mark this pod for the others as `leaving` (after SIGTERM) or `finished`, in this generation."""
        try:
            self.store.set(f"{what}/{self.generation}/{self.node_rank}", self.incarnation)
        except StoreLostError as error:
            self.log(f"cannot mark this pod as {what}: {error}")

    def marked(self, what: str) -> list[int]:
        """Return the node ranks that are marked `what` in this generation. Raises StoreLostError."""
        return sorted(int(rank) for rank in self.store.children(f"{what}/{self.generation}"))

    def all_marked(self, what: str) -> bool:
        """Return whether all pods are marked `what` in this generation. Raises StoreLostError."""
        return self.store.reached(f"{what}/{self.generation}", self.nodes)


def _address(name: str) -> str:
    """The address of a host name, so that not every rank asks the cluster's DNS; the name if DNS fails."""
    try:
        return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return name
