"""Memory of accelerators that the ranks of a run have reserved, as `status.memory` has it."""

from typing import Annotated

from megatron_contract.limits import MAX_STAGES
from pydantic import Field

from megatron_operator.api.base import ApiModel


class StageMemory(ApiModel):
    """The most memory that a rank of one pipeline stage has reserved."""

    stage: int
    """Pipeline stage."""
    rank: int
    """Global rank."""
    bytes: int
    """What PyTorch has reserved on its accelerator, as Megatron reports it (`max reserved`)."""


class MeasuredMemory(ApiModel):
    """The most memory that the run has reserved with its present job, over all starts of its ranks."""

    job: str | None = None
    """Hash of the job with which it was measured."""
    layout: str
    """The layout with which it was measured."""
    stages: Annotated[list[StageMemory], Field(min_length=1, max_length=MAX_STAGES)]
    """Of each pipeline stage the rank with the most."""

    @property
    def fullest(self) -> StageMemory:
        """That of the stage with the most."""
        return max(self.stages, key=lambda each: each.bytes)
