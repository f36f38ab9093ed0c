"""Wall time of a run by part, and assumptions about a run of thousands of nodes."""

from dataclasses import asdict, dataclass, field

from megatron_contract.time_limits import watchdog_limit


@dataclass(frozen=True, slots=True)
class Scale:
    """Assumptions about a run of this size; durations in seconds."""

    pods: int = 2048
    step: float = 6.2
    """One iteration: 16 M tokens x 6 x 405 B parameters on 16,384 GPUs at 400 TFLOP/s each."""
    checkpoint_steps: int = 50
    checkpoint_stall: float = 3.0
    """Time that an asynchronous save blocks training."""
    final_save: float = 60.0
    """A complete save on SIGTERM."""
    image_start: float = 30.0
    """From the binding of a pod to the start of its process, with the image on the node."""
    groups: float = 120.0
    """Initialization of process groups on all ranks."""
    load: float = 60.0
    """5.7 TB of weights and optimizer, from storage with at least 0.1 TB/s."""
    spares: int = 32
    """Spare nodes."""
    repair: float = 86_400.0
    """Until a broken or drained node is a spare node again."""

    @property
    def hang_found(self) -> float:
        """Seconds until a hang is detected with `hangTimeout: auto` of the trainer."""
        return watchdog_limit(self.step)


@dataclass(frozen=True, slots=True)
class Phases:
    """Measured seconds of this operator and its trainer, without the assumptions of `Scale`."""

    rank_detect: float
    rank_start: float
    pod_schedule: float
    pod_start: float


@dataclass(slots=True)
class Parts:
    """Wall time by part, in seconds."""

    useful: float = 0.0
    checkpoint: float = 0.0
    detect: float = 0.0
    schedule: float = 0.0
    start: float = 0.0
    load: float = 0.0
    redo: float = 0.0
    """Step time of repeated iterations."""

    @property
    def wall(self) -> float:
        """Total seconds."""
        return float(sum(asdict(self).values()))

    @property
    def goodput(self) -> float:
        """Share of useful step time."""
        return self.useful / self.wall


@dataclass(slots=True)
class Clock:
    """Simulated time by part; the same for every system that is compared."""

    scale: Scale
    end: float
    now: float = 0.0
    parts: Parts = field(default_factory=Parts)
    unsaved: float = 0.0
    """Step time since the newest checkpoint."""
    checkpoints: int = 0

    def spend(self, part: str, seconds: float, until: float) -> bool:
        """Advance by `seconds`, at most to `until`; return whether all of it passed."""
        whole = self.now + seconds <= until
        passed = seconds if whole else max(0.0, until - self.now)
        setattr(self.parts, part, getattr(self.parts, part) + passed)
        self.now += passed
        return whole

    def train(self, until: float) -> None:
        """Train and save checkpoints up to `until`."""
        interval = self.scale.checkpoint_steps * self.scale.step
        while self.now < until:
            step = min(interval - self.unsaved, until - self.now)
            self.now += step
            self.unsaved += step
            if self.unsaved >= interval and self.spend("checkpoint", self.scale.checkpoint_stall, until):
                self.save()

    def save(self) -> None:
        """Complete a checkpoint."""
        self.parts.useful += self.unsaved
        self.unsaved = 0.0
        self.checkpoints += 1

    def fall_back(self) -> None:
        """Fall back to the newest checkpoint: later steps have to be repeated."""
        self.parts.redo += self.unsaved
        self.unsaved = 0.0
