"""The wall time of a run in parts, and what a run of thousands of nodes is assumed to take."""

from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Scale:
    """Assumptions about a run of this size; durations in seconds."""

    pods: int = 2048
    step: float = 6.2
    """One iteration: 16 M tokens x 6 x 405 B parameters on 16,384 GPUs at 400 TFLOP/s each."""
    checkpoint_steps: int = 50
    checkpoint_stall: float = 3.0
    """What an asynchronous save holds the training up."""
    final_save: float = 60.0
    """A save on SIGTERM, until it is whole."""
    image_start: float = 30.0
    """From a pod's being bound to its process, the image on the node."""
    groups: float = 120.0
    """Process groups of all ranks."""
    load: float = 60.0
    """5.7 TB of weights and optimizer, from storage that gives 0.1 TB/s and more."""
    spares: int = 32
    """Nodes beyond those of the run."""
    repair: float = 86_400.0
    """Until a broken or drained node is a spare again."""

    @property
    def hang_found(self) -> float:
        """`hangTimeout: auto` of the trainer."""
        return 3 * self.step + 10


@dataclass(frozen=True, slots=True)
class Phases:
    """Measured seconds of this operator and its trainer, without what `Scale` assumes."""

    rank_detect: float
    rank_start: float
    pod_schedule: float
    pod_start: float


@dataclass(slots=True)
class Parts:
    """Where the wall time went, in seconds."""

    useful: float = 0.0
    checkpoint: float = 0.0
    detect: float = 0.0
    schedule: float = 0.0
    start: float = 0.0
    load: float = 0.0
    redo: float = 0.0
    """Step time of iterations that had to be done again."""

    @property
    def wall(self) -> float:
        return float(sum(asdict(self).values()))

    @property
    def goodput(self) -> float:
        return self.useful / self.wall


@dataclass(slots=True)
class Clock:
    """Time, its parts, and the iterations done; the same for every system that is compared."""

    scale: Scale
    end: float
    now: float = 0.0
    parts: Parts = field(default_factory=Parts)
    unsaved: float = 0.0
    """Step time since the newest checkpoint."""
    checkpoints: int = 0

    def spend(self, part: str, seconds: float, until: float) -> bool:
        """Let time pass, at most up to `until`; whether it sufficed."""
        whole = self.now + seconds <= until
        passed = seconds if whole else max(0.0, until - self.now)
        setattr(self.parts, part, getattr(self.parts, part) + passed)
        self.now += passed
        return whole

    def train(self, until: float) -> None:
        """Iterations and checkpoints up to `until`."""
        interval = self.scale.checkpoint_steps * self.scale.step
        while self.now < until:
            step = min(interval - self.unsaved, until - self.now)
            self.now += step
            self.unsaved += step
            if self.unsaved >= interval and self.spend("checkpoint", self.scale.checkpoint_stall, until):
                self.save()

    def save(self) -> None:
        self.parts.useful += self.unsaved
        self.unsaved = 0.0
        self.checkpoints += 1

    def fall_back(self) -> None:
        """To the newest checkpoint."""
        self.parts.redo += self.unsaved
        self.unsaved = 0.0
