"""Where the curves of a run are recorded besides its own files: MEGATRON_TRACKING, as JSON."""

from dataclasses import dataclass

from megatron_contract.wire import Message


@dataclass(frozen=True, slots=True)
class WandbRun(Message):
    """A run of Weights & Biases. Its id is that of the run; the API key is WANDB_API_KEY."""

    project: str
    entity: str | None = None
    """User or team; default that of the API key."""
    name: str | None = None
    offline: bool = False
    """Only write files on the checkpoint volume."""


@dataclass(frozen=True, slots=True)
class MlflowRun(Message):
    """A run on an MLflow server, found by its tag with the id of the run."""

    tracking_uri: str
    experiment: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Tracking(Message):
    """The trackers of a run; each follows the run's file of scalars in a process of its own on node 0."""

    tensorboard: bool = False
    wandb: WandbRun | None = None
    mlflow: MlflowRun | None = None

    @property
    def trackers(self) -> tuple[str, ...]:
        """Names of those that are set."""
        present = (self.tensorboard, self.wandb is not None, self.mlflow is not None)
        return tuple(
            name for name, used in zip(("tensorboard", "wandb", "mlflow"), present, strict=True) if used
        )
