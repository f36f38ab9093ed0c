"""How pods meet: membership is fixed (rank = pod index), only the generation changes.

A handler for torch's elastic agent. Everyone whose ranks are stopped joins the generation that is due; when
all have joined, node 0 chooses the checkpoint, since no rank is alive then, and announces it with the port
for the process group. Whoever loses a rank, finds its pod new, or hears no beat of a pod moves the
generation on, and all meet again.
"""

import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from megatron_contract.exit_codes import ExitCode
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from megatron_trainer.launcher.termination import Ending
from megatron_trainer.rendezvous.state import Ended, Plan, State
from megatron_trainer.rendezvous.store import GangStore, StoreLost
from megatron_trainer.telemetry.incidents import Kind, Report

_POLL_SECONDS = 0.1
_BEAT_SECONDS = 1.0
_LEAVE_SECONDS = 10.0
# A pod that has not been heard of for so long is taken for gone, and the others stop waiting on its ranks.
SILENCE_SECONDS = 15.0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


@dataclass
class GangRendezvous(RendezvousHandler):
    """Static membership over a GangStore.

    `prepare` runs on node 0 only, when all have met and no rank is alive. It is given the gang's state and
    whether a pod has started no rank yet, and may raise Ended. `interruption` is how this pod must end while
    it waits, None while it need not.
    """

    store: GangStore
    run_id: str
    node_rank: int
    nodes: int
    master_addr: str
    timeout: float
    prepare: Callable[[State, bool], Plan]
    interruption: Callable[[], Ending | None]
    log: Callable[[str], None]
    generation: int = 0
    plan: Plan | None = None
    incarnation: str = field(default_factory=lambda: uuid.uuid4().hex)
    _started: int = 0
    _master: str | None = None
    _beats: int = 0
    _beat_at: float = 0.0
    _heard: dict[int, tuple[str, float]] = field(default_factory=dict)

    def get_backend(self) -> str:
        return "megatron-gang"

    def get_run_id(self) -> str:
        return self.run_id

    @property
    def use_agent_store(self) -> bool:
        return False

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None: ...

    def shutdown(self) -> bool:
        self.store.disconnect()
        return True

    def num_nodes_waiting(self) -> int:
        """Pods that wait for a new generation, as torch's agents ask: 1 if ours is over, else 0."""
        return int(self.watch().generation != self.generation)

    def next_rendezvous(self) -> RendezvousInfo:
        """Meet the others at the generation that is due. This pod's ranks must be stopped.

        Raises Ended when the run has ended, when this pod is told to stop, and when the others have not
        come after `timeout` seconds.
        """
        deadline = time.monotonic() + self.timeout
        while True:
            try:
                plan = self._meet(deadline)
            except StoreLost as lost:
                self.log(f"rendezvous: {lost}")
                self.store.disconnect()
                self._require_time(deadline, "the Master pod's store")
                continue
            if plan is not None:
                self.plan = plan
                self._started = self.generation
                info = RendezvousStoreInfo(self.master_addr, plan.master_port)
                return RendezvousInfo(None, self.node_rank, self.nodes, info)

    def _meet(self, deadline: float) -> Plan | None:
        if not self.store.connected:
            self._connect(deadline)
        state = self.store.state()
        self.generation = state.generation
        self._check(state)
        key = f"joined/{state.generation}"
        self.store.set(f"{key}/{self.node_rank}", "again" if self._started else "new")
        self.log(
            f"generation {state.generation} ({state.why}): joined as node {self.node_rank} of {self.nodes}"
        )
        while True:
            state = self.watch()
            self._check(state)
            if state.generation != self.generation:
                return None
            text = self.store.get(f"plan/{self.generation}")
            if text is not None:
                self._master = self.store.get("member/0")
                return Plan.loads(text)
            joined = [f"{key}/{rank}" for rank in range(self.nodes)]
            if self.node_rank == 0 and self.store.has(joined):
                new = any(self.store.get(each) == "new" for each in joined)
                plan = replace(self._prepared(self.store.state(), new), master_port=_free_port())
                self.store.enter(f"plan/{self.generation}", plan.dumps())
                continue
            self._require_time(deadline, f"all {self.nodes} pods at generation {self.generation}")
            time.sleep(_POLL_SECONDS)

    def _prepared(self, state: State, new: bool) -> Plan:
        try:
            return self.prepare(state, new)
        except Ended as ended:
            self.judge(ended.ending)
            raise

    def _connect(self, deadline: float) -> None:
        self.store.connect(deadline, lambda: self.interruption() is not None)
        self._heard.clear()
        master = self.store.get("member/0")
        known = self.store.enter(f"member/{self.node_rank}", self.incarnation)
        if known != self.incarnation:
            self.store.set(f"member/{self.node_rank}", self.incarnation)
            replaced = Report(Kind.POD, f"node {self.node_rank} was replaced", self.node_rank)
            state = self.store.state()
            # The others may wait already, in a generation that needs no other after it.
            waiting = not self.store.has([f"plan/{state.generation}"])
            self.store.move(max(state.generation - waiting, self.generation), replaced)
        elif self.generation:
            report = Report(Kind.STORE, f"node {self.node_rank} lost the store", self.node_rank)
            if self.node_rank and master != self._master:
                report = Report(Kind.POD, "node 0 was replaced", 0)
            self.store.move(
                self.generation, replace(report, detected_at=self.store.lost_at or report.detected_at)
            )
        self.store.lost_at = None

    def _check(self, state: State) -> None:
        if state.verdict is not None:
            raise Ended(state.verdict)
        self._obey_interruption()

    def _obey_interruption(self) -> None:
        if ending := self.interruption():
            raise Ended(ending)

    def _require_time(self, deadline: float, what: str) -> None:
        self._obey_interruption()
        if time.monotonic() >= deadline:
            raise Ended(
                Ending(
                    ExitCode.PEER_LOST, f"waited {self.timeout:.0f} s at the rendezvous for {what} in vain"
                )
            )

    def watch(self) -> State:
        """Read the gang's state; beat for this pod, and on node 0 listen for the others. Raises StoreLost."""
        now = time.monotonic()
        if now - self._beat_at >= _BEAT_SECONDS:
            self._beat_at = now
            self._beats += 1
            self.store.set(f"beat/{self.node_rank}", f"{self.incarnation}/{self._beats}")
            if self.node_rank == 0:
                self._listen(now)
        return self.store.state()

    def _listen(self, now: float) -> None:
        for rank in range(1, self.nodes):
            beat = self.store.get(f"beat/{rank}")
            if beat is None:
                continue
            last, since = self._heard.get(rank, ("", now))
            if beat != last:
                self._heard[rank] = (beat, now)
            elif now - since > SILENCE_SECONDS and self._started == self.generation:
                self._heard[rank] = (beat, now)
                silent = Report(Kind.POD, f"node {rank} silent for {SILENCE_SECONDS:.0f} s", rank)
                self.store.move(self.generation, silent)

    def move(self, report: Report) -> None:
        """Begin a new generation, unless one has begun. A lost store is dealt with at the next rendezvous."""
        try:
            self.store.move(self.generation, report)
        except StoreLost as lost:
            self.log(f"cannot begin a new generation yet: {lost}")

    def judge(self, verdict: Ending) -> None:
        """End the run in every pod, as far as the store can be reached."""
        try:
            self.store.judge(verdict)
        except StoreLost as lost:
            self.log(f"cannot tell the other pods: {lost}")

    def leave(self) -> None:
        """Go for good: the run is over in all pods. Node 0 waits a little, its store says so to the rest."""
        deadline = time.monotonic() + _LEAVE_SECONDS
        try:
            self.store.set(f"left/{self.node_rank}", self.incarnation)
            keys = [f"left/{rank}" for rank in range(self.nodes)]
            while self.node_rank == 0 and time.monotonic() < deadline and not self.store.has(keys):
                time.sleep(_POLL_SECONDS)
        except StoreLost as lost:
            self.log(f"the store is gone: {lost}")

    def mark(self, what: str) -> None:
        """Let the others know that this pod is `leaving` (told to stop) or `finished`."""
        try:
            self.store.set(f"{what}/{self.generation}/{self.node_rank}", self.incarnation)
        except StoreLost as lost:
            self.log(f"cannot mark {what}: {lost}")

    def marked(self, what: str) -> list[int]:
        """The pods that have marked `what` in this generation. Raises StoreLost."""
        prefix = f"{what}/{self.generation}"
        if self.store.has([f"{prefix}/{rank}" for rank in range(self.nodes)]):
            return list(range(self.nodes))
        return [rank for rank in range(self.nodes) if self.store.has([f"{prefix}/{rank}"])]
