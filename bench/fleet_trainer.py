"""The trainer of one run of the fleet, as the operator sees it: reports, incidents, checkpoints.

While it trains, its time runs `factor` times as fast as the clock; whatever else happens takes the time that
it takes. Times are seconds since the epoch by the clock, `hours` those of the fleet.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from megatron_contract.limits import MAX_INCIDENTS
from megatron_operator.api.times import timestamp

from bench.fleet_plan import Injection, PlannedFault, RunPlan
from bench.interruptions import PER_POD
from bench.wall_time import Scale

STEP: Final = Scale().step
SAVE_STEPS: Final = Scale().checkpoint_steps
RENDEZVOUS: Final = 1.0
"""Seconds until all launchers have met, once all pods run."""
LOADING: Final = 1.0
"""Seconds from then to the first step, without what `Scale` assumes."""
SHRINK_AFTER: Final = 600.0
"""Seconds of `recovery.elastic.shrinkAfter`, of which the bench waits a part."""
WATCHDOG: Final = 1.0
"""Seconds until the trainer finds a hang, instead of `Scale.hang_found`."""


@dataclass(frozen=True, slots=True)
class Member:
    """A pod of the gang."""

    name: str
    uid: str
    rank: int
    node: str | None
    running: bool
    """Its container runs, and its node is not lost."""
    leaving: bool
    """It has been deleted, and still exists."""


@dataclass(slots=True)
class Interruption:
    """A fault that was injected, and how it ended."""

    fault: PlannedFault
    began: float
    members: tuple[Member, ...]
    ended: float | None = None
    outcome: str = "the bench ended before the run trained again"


@dataclass(slots=True)
class Times:
    """Seconds by the clock, of what is not training."""

    queued: float = 0.0
    """Before the first start."""
    waiting: float = 0.0
    """For nodes that are repaired, or that other runs hold."""
    recovering: float = 0.0
    """Everything else: detection, replacement, scheduling, start."""


@dataclass(slots=True)
class Trainer:
    """State of one run's trainer."""

    plan: RunPlan
    factor: float
    phase: str = "rendezvous"
    members: tuple[Member, ...] = ()
    """The gang that trains, or that trained last."""
    size: int = 0
    generation: int = 0
    iteration: float = 0.0
    checkpoint: int = 0
    saved_at: float | None = None
    resumed_from: int = 0
    since: float | None = None
    """When the phase began; None while pods are missing."""
    hang: Injection | None = None
    incidents: list[dict[str, Any]] = field(default_factory=list)
    broken: dict[str, Any] | None = None
    gpu_hours: float = 0.0
    trained: float = 0.0
    """Seconds in steps, by the clock."""
    repeated: float = 0.0
    """Seconds of these in steps that were lost."""
    starts: int = 0
    new_pods: int = 0
    """Starts of which at least one pod was new."""
    shrinks: int = 0
    hangs: int = 0
    """That the watchdog found."""
    saves: int = 0
    interruptions: list[Interruption] = field(default_factory=list)
    times: Times = field(default_factory=Times)
    first_started: float | None = None
    ended: float | None = None

    @property
    def total(self) -> int:
        """Iterations of the run."""
        return max(1, round(self.plan.hours * 3600 / STEP))

    @property
    def open(self) -> Interruption | None:
        """The fault that the run has not recovered from."""
        last = self.interruptions[-1] if self.interruptions else None
        return last if last is not None and last.ended is None else None

    def advance(
        self,
        now: float,
        elapsed: float,
        members: Sequence[Member],
        size: int,
        released: Collection[str] = frozenset(),
    ) -> None:
        """Let `elapsed` seconds pass up to `now`, with these pods of a gang of `size`.

        `released`: uids of pods that were deleted while they ran.
        """
        if self.phase == "finished":
            return
        present = tuple(sorted(members, key=lambda each: each.rank))
        whole = len(present) == size > 0 and all(each.running and not each.leaving for each in present)
        if self.phase in ("loading", "training") and (not whole or _uids(present) != _uids(self.members)):
            leaving = {each.uid for each in present if each.leaving and each.running}
            if self.phase == "training" and not leaving.union(released).isdisjoint(_uids(self.members)):
                self.save(now)
            self.interrupt(now, "pod", "a pod was lost")
        match self.phase:
            case "rendezvous" if not whole:
                self.since = None
            case "rendezvous":
                self.since = now if self.since is None else self.since
                if now - self.since >= RENDEZVOUS:
                    self._meet(now, present, size)
            case "loading" if self.since is not None and now - self.since >= LOADING:
                self._train(now)
            case "training":
                self._step(now, elapsed)

    def interrupt(self, now: float, kind: str, cause: str, rank: int | None = None) -> None:
        """Stop the ranks; they meet again once the gang is whole."""
        if self.phase == "training":
            self.broken = {
                "kind": kind,
                "cause": cause,
                "nodeRank": rank,
                "rank": None if rank is None else rank * PER_POD,
                "iteration": int(self.iteration),
                "lastStepAt": self.since if self.hang else now,
                "detectedAt": now,
            }
            self.repeated += (self.iteration - self.checkpoint) / self._steps_per_second()
        self.phase, self.since, self.hang = "rendezvous", None, None

    def hold(self, now: float, hang: Injection) -> None:
        """Make no step from now on."""
        self.hang, self.since = hang, now
        self.hangs += hang is Injection.RANKS_HANG

    def save(self, now: float) -> None:
        """Save a checkpoint of the last iteration, as on SIGTERM."""
        if self.hang is None and int(self.iteration) > self.checkpoint:
            self.checkpoint, self.saved_at = int(self.iteration), now

    def _meet(self, now: float, members: tuple[Member, ...], size: int) -> None:
        self.new_pods += bool(set(_uids(members)) - set(_uids(self.members)))
        self.phase, self.since, self.starts = "loading", now, self.starts + 1
        self._end_interruption(now, members, size)
        self.shrinks += size < self.size
        self.members, self.size = members, size
        self.generation += 1
        if self.broken is not None:
            start = {"generation": self.generation, "metAt": now, "resumedFrom": self.checkpoint}
            self.incidents = [*self.incidents, self.broken | start][-MAX_INCIDENTS:]
            self.broken = None
        self.iteration = self.resumed_from = self.checkpoint

    def _end_interruption(self, now: float, members: tuple[Member, ...], size: int) -> None:
        """Record how the open interruption ended, by what became of the pods."""
        found = self.open
        if found is None:
            return
        before, after = set(_uids(found.members)), set(_uids(members))
        found.ended = now
        if size != len(found.members):
            found.outcome = "resized"
        elif before == after:
            found.outcome = "ranks restarted in place"
        elif before & after:
            found.outcome = "pod replaced"
        else:
            found.outcome = "all pods replaced"

    def _train(self, now: float) -> None:
        self.phase, self.since = "training", now
        self.first_started = now if self.first_started is None else self.first_started
        if self.incidents and self.incidents[-1]["generation"] == self.generation:
            self.incidents[-1] = self.incidents[-1] | {"firstStepAt": now}

    def _step(self, now: float, elapsed: float) -> None:
        if self.hang is not None:
            if self.hang is Injection.RANKS_HANG and now - (self.since or now) >= WATCHDOG:
                self.interrupt(now, "hang", "the watchdog found a hang", 0)
            return
        speed, begun = self._steps_per_second(), self.iteration
        self.iteration = min(float(self.total), begun + elapsed * speed)
        took = (self.iteration - begun) / speed
        self.trained += took
        self.gpu_hours += took * self.factor / 3600 * self.size * PER_POD
        newest = int(self.iteration) // SAVE_STEPS * SAVE_STEPS
        if newest > self.checkpoint:
            self.saves += (newest - self.checkpoint) // SAVE_STEPS
            self.checkpoint, self.saved_at = newest, now
        last = self.incidents[-1] if self.incidents else None
        if last is not None and last["generation"] == self.generation and self.iteration >= last["iteration"]:
            self.incidents[-1] = {"caughtUpAt": now} | last
        if self.iteration >= self.total:
            self.phase, self.checkpoint, self.saved_at, self.ended = "finished", self.total, now, now

    def _steps_per_second(self) -> float:
        """An elastic run on fewer nodes keeps its batch, so that its steps take longer."""
        return self.factor / STEP * self.size / self.plan.nodes

    def report(self, rank: int) -> dict[str, Any]:
        """The body of /progress of the pod of this rank."""
        return {
            "schema": 1,
            "phase": self.phase,
            "nodeRank": rank,
            "generation": self.generation or None,
            "iteration": int(self.iteration),
            "trainIters": self.total,
            "stepSeconds": STEP / self.factor,
            "checkpointIteration": self.checkpoint or None,
            "checkpointTime": None if self.saved_at is None else timestamp(self.saved_at),
            "resumedFrom": self.resumed_from or None,
            "incidents": self.incidents,
            "usefulSeconds": self.trained - self.repeated,
            "firstStartedAt": self.first_started,
        }


def _uids(members: Sequence[Member]) -> tuple[str, ...]:
    return tuple(each.uid for each in members)


@dataclass(frozen=True, slots=True)
class FleetTime:
    """Time of a run from its first start to its end on the fleet's clock, in hours."""

    useful: float
    redo: float
    save: float
    hang: float
    start: float
    """What `Scale` assumes of each start: image, process groups, loading."""
    wait: float
    recover: float
    """By the clock: what operator, Kubernetes and the simulated launchers took."""

    @property
    def whole(self) -> float:
        """The sum."""
        return self.useful + self.redo + self.save + self.hang + self.start + self.wait + self.recover

    @property
    def goodput(self) -> float:
        """Share of useful time."""
        return self.useful / self.whole if self.whole else 0.0


def fleet_time(trainer: Trainer, scale: Scale) -> FleetTime:
    """The time of a run on the fleet's clock.

    Training and waiting for nodes are `factor` times as long as by the clock, and what takes a real trainer
    longer than the simulated one is added. An elastic run does not wait for nodes longer than the operator
    lets it: its waiting counts as it is.
    """
    hour = 3600.0
    elastic = trainer.plan.least_nodes is not None
    starts = trainer.starts * (scale.groups + scale.load) + trainer.new_pods * scale.image_start
    waited = trainer.times.waiting
    return FleetTime(
        useful=(trainer.trained - trainer.repeated) * trainer.factor / hour,
        redo=trainer.repeated * trainer.factor / hour,
        save=trainer.saves * scale.checkpoint_stall / hour,
        hang=trainer.hangs * scale.hang_found / hour,
        start=starts / hour,
        wait=(waited + trainer.shrinks * SHRINK_AFTER if elastic else waited * trainer.factor) / hour,
        recover=trainer.times.recovering / hour,
    )
