"""`spec.tracking`: where the curves of a run are recorded besides its status."""

from typing import Annotated, Literal

from pydantic import Field

from megatron_operator.api.base import ApiModel
from megatron_operator.api.pod_environment import EnvVarSource, KeyReference

TRACKING_URI_PATTERN = r"^https?://(\[[0-9A-Fa-f:.]+\]|[^@?#/:\[\]\s]+)(:[0-9]{1,5})?(/[^@?#\s]*)?$"
WANDB_NAME_PATTERN = r"^[^/\\#?%:\s][^/\\#?%:]*$"

WANDB_KEY = "WANDB_API_KEY"
"""Variable with the API key of Weights & Biases."""
MLFLOW_TOKEN = "MLFLOW_TRACKING_TOKEN"
"""Variable with the token of an MLflow server."""

WandbName = Annotated[str, Field(min_length=1, max_length=128, pattern=WANDB_NAME_PATTERN)]
Title = Annotated[str, Field(min_length=1, max_length=250)]
TrackingUri = Annotated[str, Field(max_length=500, pattern=TRACKING_URI_PATTERN)]


class TensorboardSpec(ApiModel):
    """Event files in `tensorboard` beside the checkpoints."""


class WandbSpec(ApiModel):
    """A run of Weights & Biases, which continues over all restarts."""

    project: WandbName
    """Project that the run is in."""
    entity: WandbName | None = None
    """User or team; default that of the API key."""
    name: Title | None = None
    """Name that is shown; default the recipe's."""
    mode: Literal["online", "offline"] = "online"
    """`offline`: only write files in `wandb` beside the checkpoints, for `wandb sync`."""
    secret_key_ref: KeyReference | None = None
    """The API key; or set the variable WANDB_API_KEY by `envValueFrom` or `envFrom`."""


class MlflowSpec(ApiModel):
    """A run on an MLflow server, which continues over all restarts."""

    tracking_uri: TrackingUri
    """URL of the server, without user and password."""
    experiment: Title
    """Experiment that the run is in; it is created if it is missing."""
    name: Title | None = None
    """Name that is shown; default the recipe's."""
    secret_key_ref: KeyReference | None = None
    """A token that the server requires; or set MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and
    MLFLOW_TRACKING_PASSWORD, by `envValueFrom` or `envFrom`."""


class TrackingSpec(ApiModel):
    """Where the curves of a run are recorded; a tracker that cannot be reached never stops the training."""

    tensorboard: TensorboardSpec | None = None
    """TensorBoard: `{}` writes event files in `tensorboard` beside the checkpoints."""
    wandb: WandbSpec | None = None
    """Weights & Biases."""
    mlflow: MlflowSpec | None = None
    """MLflow."""

    def credentials(self) -> dict[str, EnvVarSource]:
        """The variables of trainer pods with the credentials that the fields refer to."""
        references = {
            WANDB_KEY: self.wandb.secret_key_ref if self.wandb else None,
            MLFLOW_TOKEN: self.mlflow.secret_key_ref if self.mlflow else None,
        }
        return {
            name: EnvVarSource(secret_key_ref=reference)
            for name, reference in references.items()
            if reference is not None
        }
