"""What Megatron FSDP cannot train, save or load, and what the plan of it does not know.

Sources: megatron-core 0.19.2. `_get_dp_tp_mesh` of its adapter has no pipeline stages. Its checkpoints
(`fsdp_dtensor`) are saved by torch's own writer: the call of the asynchronous one has an argument that
Megatron's writer lacks, and both non-persistent checkpoints and those of weights are read as `torch_dist`.
The halves of a gated product are found by names that an FP32 model lacks (`handle_swiglu_in_state_dict`).
Gradients of experts differ from those of the distributed optimizer where a step has more than one micro
batch, as measured on CPUs.
"""

from collections.abc import Iterator
from typing import Final

from megatron_operator.api.errors import FieldError
from megatron_operator.api.model import ModelSpec
from megatron_operator.api.status import Plan
from megatron_operator.catalog.full_sharding import NOT_TAKEN
from megatron_operator.catalog.resolved import ResolvedRecipe

FIELD: Final = "spec.parallelism.useMegatronFsdp"
_WITHOUT: Final = "leave it out, or useMegatronFsdp"
_OF_FSDP_ALONE: Final = (
    *("data-parallel-sharding-strategy", "outer-dp-sharding-strategy", "suggested-communication-unit-size"),
    *("fsdp-double-buffer", "fsdp-db-use-persist-buf-on-alloc-fail", "megatron-fsdp-max-pool-double-buffer"),
    *("megatron-fsdp-main-params-dtype", "megatron-fsdp-main-grads-dtype", "megatron-fsdp-grad-comm-dtype"),
    "megatron-fsdp-enable-fine-grained-param-gather",
)
"""Flags that nothing else reads."""
_FLAGS: Final = (
    *_OF_FSDP_ALONE,
    *("num-distributed-optimizer-instances", "use-nccl-ub", "cuda-graph-impl", "delay-wgrad-compute"),
    "init-model-with-meta-device",
    *("optimizer-cpu-offload", "grad-reduce-in-bf16", "keep-fp8-transpose-cache", "spec"),
    *("check-weight-hash-across-dp-replicas-interval", "hybrid-layer-pattern", "hybrid-context-parallel"),
    *("experimental-attention-variant", "non-persistent-ckpt-type", "no-gradient-reduce-div-fusion"),
)
"""Flags that change what FSDP does, its memory, or the layers that it shards."""


def fsdp_errors(resolved: ResolvedRecipe) -> list[FieldError]:
    """Errors for settings with which a run with Megatron FSDP would fail, or be another than the plan's.

    None for a run by Megatron-Bridge, which does not take the field itself.
    """
    if not resolved.parallelism.use_megatron_fsdp or resolved.engine == "bridge":
        return []
    return [
        *model_errors(resolved.model),
        *_of_training(resolved),
        *_of_checkpoints(resolved),
        *_of_flags(resolved),
    ]


def fsdp_warnings(resolved: ResolvedRecipe, plan: Plan) -> Iterator[str]:
    """Warnings about a run that FSDP does not shard, and about flags that only FSDP reads."""
    if plan.use_megatron_fsdp:
        if plan.data_parallel_size == 1:
            yield (
                "parallelism.useMegatronFsdp with DP 1 shards nothing and needs more memory than without: "
                "leave it out"
            )
        return
    for flag in _OF_FSDP_ALONE:
        is_own = resolved.is_set_by_user(f"megatronArgs.{flag}")
        if is_own and resolved.megatron_args.get(flag) not in (None, False):
            yield f"megatronArgs.{flag} is for Megatron FSDP alone and has no effect on this run"


def model_errors(model: ModelSpec) -> Iterator[FieldError]:
    """Errors for models that are not trained with Megatron FSDP."""
    if model.num_experts:
        yield FieldError(
            FIELD,
            "with experts (model.numExperts), whose gradients Megatron Core 0.19.2 accumulates wrongly",
            "leave it out: useDistributedOptimizer shards the optimizer states",
        )
    for name, value in (
        ("multiLatentAttention", model.multi_latent_attention),
        ("mtpNumLayers", model.mtp_num_layers),
    ):
        if value:
            yield FieldError(
                FIELD, f"with model.{name}, whose checkpoints were not resumed with it", "leave it out"
            )


def _of_training(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    training, parallelism = resolved.training, resolved.parallelism
    if training.fp16 or training.fp8_format or training.fp4_format:
        yield FieldError(
            FIELD, "with FP16, FP8 or FP4; it takes BF16 and FP32", "train in BF16, or leave it out"
        )
    elif resolved.model.swiglu and not training.bf16:
        yield FieldError(
            "spec.training.bf16",
            "is false with useMegatronFsdp: Megatron Core 0.19.2 saves its gated products (swiglu) in BF16",
            "set true, or leave useMegatronFsdp out",
        )
    if training.optimizer not in (None, "adam"):
        message = f"{training.optimizer} with useMegatronFsdp, which takes adam"
        yield FieldError("spec.training.optimizer", message, "set adam, or leave useMegatronFsdp out")
    if training.accumulate_allreduce_grads_in_fp32 is False:
        message = "is false with useMegatronFsdp, which sums gradients in FP32 here"
        yield FieldError("spec.training.accumulateAllreduceGradsInFp32", message, _WITHOUT)
    sections = {"training": training.wire(), "parallelism": parallelism.wire()}
    for section, name in NOT_TAKEN:
        if sections[section].get(name):
            yield FieldError(f"spec.{section}.{name}", "is not taken with useMegatronFsdp", _WITHOUT)
    for name, overlap in (
        ("overlapGradReduce", parallelism.overlap_grad_reduce),
        ("overlapParamGather", parallelism.overlap_param_gather),
    ):
        if overlap is False and resolved.is_set_by_user(f"parallelism.{name}"):
            message = "is false with useMegatronFsdp, which always overlaps"
            yield FieldError(f"spec.parallelism.{name}", message, _WITHOUT)


def _of_checkpoints(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    checkpoint = resolved.checkpoint
    if checkpoint.async_save:
        message = (
            "is true with useMegatronFsdp: Megatron Core 0.19.2 does not save its checkpoints asynchronously"
        )
        yield FieldError("spec.checkpoint.asyncSave", message, "set false, or leave useMegatronFsdp out")
    if checkpoint.no_save_optim:
        message = (
            "is true with useMegatronFsdp: Megatron Core 0.19.2 loads the weights that it trains with the"
            " optimizer's states alone"
        )
        yield FieldError("spec.checkpoint.noSaveOptim", message, _WITHOUT)
    if checkpoint.local is not None:
        message = "is set with useMegatronFsdp: Megatron Core 0.19.2 does not load its local checkpoints"
        yield FieldError("spec.checkpoint.local", message, _WITHOUT)
    if resolved.init.source is not None:
        message = "has weights in torch_dist, which a run with useMegatronFsdp does not load"
        yield FieldError("spec.init.from", message, _WITHOUT)
    if resolved.export is not None:
        message = "reads checkpoints in torch_dist, and a run with useMegatronFsdp saves fsdp_dtensor"
        yield FieldError("spec.export", message, _WITHOUT)


def _of_flags(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    for flag in _FLAGS:
        if resolved.megatron_args.get(flag) not in (None, False, "none"):
            yield FieldError(f"spec.megatronArgs.{flag}", "is not taken with useMegatronFsdp", _WITHOUT)
