"""A model on a layout: everything that memory and step time depend on."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Final, Literal

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.api.fine_tuning import ModelPart
from megatron_operator.api.parallel_dims import ParallelDims
from megatron_operator.api.status import Plan
from megatron_operator.api.training import ParallelismSpec, TrainingSpec
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner.estimate.adapters import Adapters
from megatron_operator.planner.estimate.diffusion import sample_tokens
from megatron_operator.planner.estimate.layers import LayerKind
from megatron_operator.planner.estimate.model_shape import ModelShape, model_shape

MegatronArgs = Mapping[str, Any]
OFFLOAD_FRACTION: Final = "optimizer-offload-fraction"
OPTIMIZER_INSTANCES: Final = "num-distributed-optimizer-instances"


@dataclass(frozen=True, slots=True)
class Numerics:
    """Bytes per parameter, and whether matrix products run in FP8."""

    weight: float = 2
    """Bytes of a weight of the model, without optimizer states."""
    gradient: float = 4
    """Bytes of the gradient that is accumulated and reduced."""
    optimizer: float = 12
    """Bytes of FP32 master weight and both moments of Adam; sharded by the distributed optimizer."""
    host: float = 0
    """Bytes per parameter of the optimizer's shard in the memory of the host."""
    fp8: bool = False
    block_scaled: bool = False
    """FP8 with a scale for each block (mxfp8, blockwise) instead of one for each tensor."""
    fp4: bool = False
    """Whether products are in FP4; their time is that of FP8."""
    fp8_copies: float = 0
    """Additional bytes per parameter of a layer: FP8 copies that are kept between micro batches."""
    step_copies: float = 0
    """Bytes per parameter of the optimizer's shard while it steps: FP32 copies of 16-bit moments."""
    gradient_copies: float = 0
    """Bytes per parameter of the optimizer's shard, before it steps: FP32 copies of 16-bit gradients."""
    gathered_weight: float = 2
    """Bytes per parameter that the distributed optimizer gathers."""

    @property
    def in_fp32(self) -> bool:
        """Whether weights, and what layers compute, are in FP32."""
        return self.weight == 4

    @property
    def widths(self) -> float:
        """Width of an element that layers compute, relative to 16 bits."""
        return 2 if self.in_fp32 else 1


@dataclass(frozen=True, slots=True)
class Recomputation:
    """What the backward pass recomputes."""

    granularity: Literal["full", "selective"] | None = None
    method: Literal["uniform", "block"] = "uniform"
    layers: int = 1
    """`--recompute-num-layers` of full recomputation: layers of a unit (`uniform`), or recomputed layers of
    each stage (`block`)."""
    modules: frozenset[str] = frozenset()
    """`--recompute-modules` of selective recomputation."""

    @property
    def selected(self) -> frozenset[str]:
        """Modules that are recomputed by themselves: without a name `core_attn`, Megatron's default."""
        if self.granularity != "selective":
            return frozenset()
        return self.modules or frozenset({"core_attn"})


@dataclass(frozen=True, slots=True)
class Execution:
    """Kernels, and communication that overlaps computation."""

    unfused_attention: bool = False
    """Attention that writes its probabilities to memory."""
    fused_sparse_attention: bool = False
    """DeepSeek-V4's attention in kernels that gather the selected keys themselves."""
    tensor_overlap: bool = False
    expert_overlap: bool = False
    gradient_overlap: bool = True
    parameter_overlap: bool = True
    deduplicated_dispatch: bool = False
    """A token is sent to each node once, even if several of its experts are there (flex dispatcher)."""
    graphs: Literal["none", "partial", "full"] = "none"
    """CUDA graphs of parts of a layer, or of the whole iteration."""
    fused_experts: bool = False
    """Biases and activation of experts are in the kernels of their products: Transformer Engine's operation
    fuser, which has such kernels for MXFP8."""


@dataclass(frozen=True)
class Workload:
    """Sizes of the model, of every parallel group and of the batch.

    Sequence lengths are in tokens, batch sizes in samples.
    """

    shape: ModelShape
    dims: ParallelDims
    seq_length: int
    micro_batch: int
    micro_batches: int
    """Micro batches of one data-parallel rank in one step."""
    stage_layers: tuple[int, ...]
    """Transformer layers of each pipeline stage."""
    sequence_parallel: bool = True
    distributed_optimizer: bool = True
    optimizer_instances: int = 1
    """Copies of the optimizer states that the distributed optimizer shards."""
    fully_sharded: bool = False
    """Whether data-parallel ranks shard weights and gradients too (Megatron FSDP)."""
    numerics: Numerics = Numerics()
    recompute: Recomputation = Recomputation()
    execution: Execution = field(default_factory=Execution)
    adapters: Adapters | None = None
    """All that is trained, with LoRA; None trains all weights."""
    frozen: frozenset[ModelPart] = frozenset()
    """Parts of a vision-language model that are not trained."""

    @property
    def language_frozen(self) -> bool:
        """Whether the weights of the language model have no gradients."""
        return self.adapters is not None or "language" in self.frozen

    @property
    def tokens(self) -> float:
        """Tokens of one micro batch on one context-parallel rank."""
        return self.seq_length * self.micro_batch / self.dims.cp

    @property
    def split_sequence(self) -> bool:
        """Whether norms and dropouts are split over the tensor-parallel group (TP 1 has nothing to split)."""
        return self.sequence_parallel or self.dims.tp == 1

    @property
    def optimizer_copies(self) -> tuple[int, int]:
        """Ranks that share the optimizer states of everything but experts, and of experts."""
        if not self.distributed_optimizer:
            return 1, 1
        instances = max(1, self.optimizer_instances)
        ranks, of_experts = self.dims.dp * self.dims.cp, self.dims.expert_dp if self.shape.is_moe else 1
        return max(1, ranks // instances), max(1, of_experts // instances)

    @cached_property
    def kinds_of_stage(self) -> tuple[Mapping[LayerKind, int], ...]:
        """How many layers of each kind each pipeline stage has, without multi-token predictions."""
        return _kinds_of_stages(self.shape, self.stage_layers, self.dims.vp)

    @property
    def different_stages(self) -> tuple[int, ...]:
        """The first stage of each kind: stages of one kind have the same layers."""
        return _different_stages(self.shape, self.stage_layers, self.dims.vp)

    @classmethod
    def of(cls, resolved: ResolvedRecipe, plan: Plan) -> "Workload":
        """The workload of a plan. Raises InvalidRecipeError when the model is incomplete."""
        found = Diagnostics()
        shape = model_shape(resolved.model, found)
        if shape is None or resolved.training.seq_length is None:
            raise InvalidRecipeError(
                found.errors or [FieldError("spec.training.seqLength", "is missing", "set it")]
            )
        args = resolved.megatron_args
        return cls(
            shape=shape,
            dims=ParallelDims.of_plan(plan),
            seq_length=sample_tokens(shape, resolved.training.seq_length),
            micro_batch=plan.micro_batch_size,
            micro_batches=plan.gradient_accumulation,
            stage_layers=tuple(plan.stage_layers),
            sequence_parallel=plan.sequence_parallel,
            distributed_optimizer=plan.use_distributed_optimizer,
            optimizer_instances=optimizer_instances(args),
            fully_sharded=bool(plan.use_megatron_fsdp),
            numerics=numerics(resolved.training, args),
            recompute=Recomputation(
                granularity=_granularity(plan.recompute_granularity),
                method="block" if plan.recompute_method == "block" else "uniform",
                layers=plan.recompute_num_layers or 1,
                modules=frozenset(plan.recompute_modules or ()) | _list_of(args, "recompute-modules"),
            ),
            execution=execution(
                resolved.training,
                resolved.parallelism,
                args,
                dispatcher=resolved.model.moe_token_dispatcher_type,
                gradient_overlap=plan.overlap_grad_reduce,
                parameter_overlap=plan.overlap_param_gather,
                trainers_layers=resolved.computes_sparse_attention,
            ),
            adapters=Adapters.of(resolved),
            frozen=frozenset(resolved.frozen),
        )


def _granularity(value: str | None) -> Literal["full", "selective"] | None:
    return "full" if value == "full" else "selective" if value == "selective" else None


def _list_of(args: MegatronArgs, flag: str) -> frozenset[str]:
    value = args.get(flag)
    return frozenset(map(str, value)) if isinstance(value, list) else frozenset()


_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}


def _bytes_of(args: MegatronArgs, flag: str) -> int:
    """Bytes of the number format that a flag names; those of FP32 for any other value."""
    return _BYTES.get(str(args.get(flag, "fp32")), 4)


def numerics(training: TrainingSpec, args: MegatronArgs) -> Numerics:
    """Bytes per parameter of weights, gradients and optimizer.

    Source: "Distributed optimizer" of Megatron's documentation: BF16 weights 2, FP32 gradients 4, Adam 12;
    all in FP32 4, 4 and 8. The precision-aware optimizer keeps only the 16 bits of the FP32 master weight
    that the BF16 weight lacks (`store_param_remainders`), where it has the master weights, and takes the
    types of moments and gradients from `--exp-avg-dtype`, `--exp-avg-sq-dtype` and `--main-grads-dtype`; its
    kernel takes FP32 copies of 16-bit moments. Where Megatron has them, 16-bit gradients are copied in FP32
    (`_copy_model_grads_to_main_grads`). FP8 keeps two FP8 copies of a weight, one for each direction of the
    product, unless the weights themselves are FP8 (`--fp8-param-gather`). `--optimizer-cpu-offload` moves a
    fraction of the states to the host, with a copy of the gradients, and keeps all of them in FP32
    (`HybridDeviceOptimizer`).
    """
    # FP4 products are taken to be as fast as FP8: no published peak is reached yet.
    fp4 = training.fp4_format is not None
    fp8 = training.fp8_format is not None or fp4
    if not (training.bf16 or training.fp16):
        moments = 8 if training.optimizer in (None, "adam") else 4
        return Numerics(weight=4, gradient=4, optimizer=moments, gathered_weight=4)
    aware = bool(training.use_precision_aware_optimizer)
    master = _bytes_of(args, "main-params-dtype")
    in_kernel = kernel_has_master_weights(training, args)
    if in_kernel and master == 4 and training.bf16:
        master = 2
    # FP32 copies of other moments: `FusedAdam.get_unscaled_state` of Transformer Engine.
    first = _bytes_of(args, "exp-avg-dtype") if aware else 4
    second = _bytes_of(args, "exp-avg-sq-dtype") if aware else 4
    gradient = _bytes_of(args, "main-grads-dtype") if aware else 4
    if args.get("grad-reduce-in-bf16"):
        gradient = 2
    if training.fp16:  # `validate_args` asks for sums in FP32 with BF16 alone.
        gradient = 4 if training.accumulate_allreduce_grads_in_fp32 else 2
    offloaded = offloaded_fraction(args)
    if offloaded is not None:
        master = first = second = 4
    states = master + first + (second if training.optimizer in (None, "adam") else 0)
    # `HybridDeviceOptimizer` keeps FP32 gradients of what it updates on the GPU.
    kept_copies = 4 if offloaded is not None and gradient < 4 else 0
    return Numerics(
        weight=2,
        gradient=gradient,
        optimizer=(states + kept_copies) * (1 - (offloaded or 0)),
        host=(states + 4) * (offloaded or 0),
        step_copies=4 * ((first < 4) + (second < 4 and training.optimizer in (None, "adam"))),
        gradient_copies=4 if gradient < 4 and not in_kernel else 0,
        fp8=fp8,
        block_scaled=training.fp8_recipe in ("mxfp8", "blockwise"),
        fp4=fp4,
        fp8_copies=2 if fp8 and not training.fp8_param_gather else 0,
        gathered_weight=1 if training.fp8_param_gather else 2,
    )


def kernel_has_master_weights(training: TrainingSpec, args: MegatronArgs) -> bool:
    """Whether the precision-aware optimizer has the master weights itself, and takes gradients as they are.

    Megatron has them with FP8 other than `delayed`, if they are in FP32 and not offloaded (`OptimizerConfig`,
    `use_precision_aware_optimizer_no_fp8_or_ds_fp8`).
    """
    if not training.use_precision_aware_optimizer:
        return False
    delayed = training.fp8_format is None or training.fp8_recipe in (None, "delayed")
    return delayed or _bytes_of(args, "main-params-dtype") < 4 or bool(args.get("optimizer-cpu-offload"))


def offloaded_fraction(args: MegatronArgs) -> float | None:
    """Fraction of the optimizer's states on the host ; None without offloading.

    1, Megatron's default, where the flag is missing or refused.
    """
    if not args.get("optimizer-cpu-offload"):
        return None
    try:
        fraction = float(str(args.get(OFFLOAD_FRACTION, 1.0)))
    except ValueError:
        return 1.0
    return fraction if 0 <= fraction <= 1 else 1.0


def optimizer_instances(args: MegatronArgs) -> int:
    """Copies of the sharded optimizer states; 1, Megatron's default, where the flag has no number."""
    try:
        return int(str(args.get(OPTIMIZER_INSTANCES, 1)))
    except ValueError:
        return 1


def execution(
    training: TrainingSpec,
    parallelism: ParallelismSpec,
    args: MegatronArgs,
    *,
    dispatcher: str | None,
    gradient_overlap: bool = True,
    parameter_overlap: bool = True,
    trainers_layers: bool = False,
) -> Execution:
    """Kernels and overlaps as the recipe's settings select them.

    `trainers_layers`: whether sparse attention is computed by layers of the trainer, without fused kernels.
    Transformer Engine has no fused attention for FP32 (`get_attention_backend`).
    """
    return Execution(
        unfused_attention=training.attention_backend in ("unfused", "local")
        or training.transformer_impl == "local"
        or not (training.bf16 or training.fp16),
        fused_sparse_attention=args.get("dsa-kernel-backend", "none") != "none" and not trainers_layers,
        tensor_overlap=bool(parallelism.tp_comm_overlap),
        expert_overlap=bool(args.get("overlap-moe-expert-parallel-comm")),
        gradient_overlap=gradient_overlap,
        parameter_overlap=parameter_overlap,
        deduplicated_dispatch=dispatcher == "flex",
        graphs=_graphs(args),
        fused_experts=bool(args.get("use-transformer-engine-op-fuser")) and training.fp8_recipe == "mxfp8",
    )


def _graphs(args: MegatronArgs) -> Literal["none", "partial", "full"]:
    impl = args.get("cuda-graph-impl", "none")
    if impl in ("none", "full_iteration"):
        return "none" if impl == "none" else "full"
    scope = args.get("cuda-graph-scope", ())
    return "full" if "full_iteration" in (scope if isinstance(scope, list) else [scope]) else "partial"


@lru_cache(maxsize=256)
def _kinds_of_stages(
    shape: ModelShape, stages: tuple[int, ...], virtual: int
) -> tuple[Mapping[LayerKind, int], ...]:
    """Layouts that differ in other sizes have the same stages."""
    return kinds_of_stages(shape.kinds, stages, virtual)


@lru_cache(maxsize=256)
def _different_stages(shape: ModelShape, stages: tuple[int, ...], virtual: int) -> tuple[int, ...]:
    layers = _kinds_of_stages(shape, stages, virtual)
    return tuple(sorted(set(map(layers.index, layers))))


def kinds_of_stages(
    kinds: tuple[LayerKind, ...], stages: tuple[int, ...], virtual: int
) -> tuple[Mapping[LayerKind, int], ...]:
    """How many layers of each kind each stage has.

    `kinds` has one value per layer, `stages` the layers of each stage, and `virtual` is the number of virtual
    stages of a stage. Interleaved stages take every `pp`-th chunk, where `pp` is the number of stages; where
    chunks are uneven, consecutive layers are assumed to be in one stage.
    """
    pp = len(stages)
    if virtual > 1 and len(set(stages)) == 1 and stages[0] % virtual == 0:
        size = stages[0] // virtual
        return tuple(
            Counter(
                kind for v in range(virtual) for kind in kinds[(v * pp + i) * size : (v * pp + i + 1) * size]
            )
            for i in range(pp)
        )
    counts, start = [], 0
    for layers in stages:
        counts.append(Counter(kinds[start : start + layers]))
        start += layers
    return tuple(counts)
