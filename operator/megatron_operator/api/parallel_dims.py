"""Sizes of a run's parallel groups, as one value."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from megatron_operator.api.training import ParallelismSpec

PLAN_FIELDS: Final = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "vp": "virtual_pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
    "dp": "data_parallel_size",
}
"""Dimension -> the field of `status.plan` and of an alternative that holds it."""
SPEC_FIELDS: Final = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "vp": "num_virtual_stages_per_pipeline_rank",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
}
"""Dimension -> the field of `spec.parallelism` that requests it; DP follows from the accelerators."""


class HasParallelSizes(Protocol):
    """A plan, or a layout that was considered. Each size is a number of ranks, or of virtual stages."""

    @property
    def tensor_model_parallel_size(self) -> int: ...
    @property
    def pipeline_model_parallel_size(self) -> int: ...
    @property
    def virtual_pipeline_model_parallel_size(self) -> int | None: ...
    @property
    def context_parallel_size(self) -> int: ...
    @property
    def expert_model_parallel_size(self) -> int: ...
    @property
    def expert_tensor_parallel_size(self) -> int: ...
    @property
    def data_parallel_size(self) -> int: ...


@dataclass(frozen=True, slots=True)
class ParallelDims:
    """Ranks in each parallel group. World size = TP x PP x CP x DP = ETP x EP x expert DP x PP."""

    tp: int = 1
    """Tensor parallel."""
    pp: int = 1
    """Pipeline stages."""
    cp: int = 1
    """Context parallel."""
    dp: int = 1
    """Data parallel."""
    ep: int = 1
    """Expert parallel."""
    etp: int = 1
    """Expert tensor parallel: ranks that share one expert."""
    vp: int = 1
    """Virtual stages (model chunks) of each pipeline rank; 1 without interleaving."""

    @property
    def model_parallel(self) -> int:
        """Ranks that hold one copy of the model outside its experts: TP x PP x CP."""
        return self.tp * self.pp * self.cp

    @property
    def expert_model_parallel(self) -> int:
        """Ranks that hold one copy of all experts: ETP x EP x PP."""
        return self.etp * self.ep * self.pp

    @property
    def world_size(self) -> int:
        """Ranks of the run."""
        return self.model_parallel * self.dp

    @property
    def expert_dp(self) -> int:
        """Ranks that hold copies of the same experts; at least 1."""
        return max(1, self.world_size // self.expert_model_parallel)

    @classmethod
    def of_plan(cls, plan: HasParallelSizes) -> "ParallelDims":
        """Sizes of a plan or of an alternative."""
        return cls(**{dim: getattr(plan, field) or 1 for dim, field in PLAN_FIELDS.items()})

    @classmethod
    def of_spec(cls, spec: ParallelismSpec, world_size: int) -> "ParallelDims":
        """Sizes that a spec requests; an unset one is 1, and ETP is TP without expert parallelism.

        DP is what `world_size` leaves, rounded down.
        """
        sizes = {dim: getattr(spec, field) or 1 for dim, field in SPEC_FIELDS.items()}
        if spec.expert_tensor_parallel_size is None and sizes["ep"] == 1:
            sizes["etp"] = sizes["tp"]
        return cls(**sizes, dp=world_size // (sizes["tp"] * sizes["pp"] * sizes["cp"]))

    def plan_fields(self) -> dict[str, int | None]:
        """Fields of `status.plan`; the virtual size is null without interleaving."""
        fields: dict[str, int | None] = {field: getattr(self, dim) for dim, field in PLAN_FIELDS.items()}
        if self.vp == 1:
            fields[PLAN_FIELDS["vp"]] = None
        return fields

    def describe(self, dims: Iterable[str] = ("tp", "pp", "vp", "cp", "ep", "dp")) -> str:
        """`TP 4, PP 2, CP 1, DP 8`; VP and EP only where they are above 1."""
        shown = (dim for dim in dims if dim not in ("vp", "ep") or getattr(self, dim) > 1)
        return ", ".join(f"{dim.upper()} {getattr(self, dim)}" for dim in shown)
