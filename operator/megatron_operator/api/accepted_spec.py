"""`MegatronRecipe.status.accepted`: what holds of a spec while an edit is refused or waits."""

from typing import Annotated

from pydantic import Field

from megatron_operator.api.base import ApiModel


class AcceptedSpec(ApiModel):
    """Settings of the spec that the run follows: they hold while a later one is refused or waits."""

    max_restarts: int
    """`recovery.maxRestarts`."""
    hang_timeout: str
    """`recovery.hangTimeout`: `auto`, `off` or seconds."""
    rendezvous_timeout: int
    """`recovery.rendezvousTimeout`, in seconds."""
    exports: Annotated[list[str], Field(max_length=2)] | None = None
    """`export.when`, or its default; not set without `export`."""
    training_hash: str | None = None
    """Digest of what the spec states of the training: a run that has trained does not train again while it is
    the same. Not part of it are `recovery`, `suspend`, `ttlSecondsAfterFinished` and, but for a best
    checkpoint to be kept, `export`."""
