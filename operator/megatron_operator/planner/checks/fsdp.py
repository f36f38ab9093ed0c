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
from megatron_operator.catalog.resolved import ResolvedRecipe

FIELD: Final = "spec.parallelism.useMegatronFsdp"
_WITHOUT: Final = "leave it out, or useMegatronFsdp"
_FLAGS: Final = (
    *("data-parallel-sharding-strategy", "outer-dp-sharding-strategy", "num-distributed-optimizer-instances"),
    *("suggested-communication-unit-size", "fsdp-double-buffer", "fsdp-db-use-persist-buf-on-alloc-fail"),
    *("megatron-fsdp-main-params-dtype", "megatron-fsdp-main-grads-dtype", "megatron-fsdp-grad-comm-dtype"),
    *("megatron-fsdp-enable-fine-grained-param-gather", "megatron-fsdp-max-pool-double-buffer"),
    *("init-model-with-meta-device", "use-nccl-ub", "cuda-graph-impl", "delay-wgrad-compute"),
    *("optimizer-cpu-offload", "grad-reduce-in-bf16", "keep-fp8-transpose-cache", "spec"),
    *("check-weight-hash-across-dp-replicas-interval", "hybrid-layer-pattern", "hybrid-context-parallel"),
    *("experimental-attention-variant", "non-persistent-ckpt-type", "no-gradient-reduce-div-fusion"),
)
"""Flags that change what FSDP does, its memory, or the layers that it shards."""


def fsdp_errors(resolved: ResolvedRecipe) -> list[FieldError]:
    """Errors for settings with which a run with Megatron FSDP would fail, or be another than the plan's."""
    if not resolved.parallelism.use_megatron_fsdp:
        return []
    return [*_of_model(resolved), *_of_training(resolved), *_of_checkpoints(resolved), *_of_flags(resolved)]


def _of_model(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    model = resolved.model
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
    for path, value in (
        ("training.usePrecisionAwareOptimizer", training.use_precision_aware_optimizer),
        ("parallelism.tpCommOverlap", parallelism.tp_comm_overlap),
        ("parallelism.ddpBucketSize", parallelism.ddp_bucket_size),
    ):
        if value and resolved.is_set_by_user(path):
            yield FieldError(f"spec.{path}", "is not taken with useMegatronFsdp", _WITHOUT)


def _of_checkpoints(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    checkpoint = resolved.checkpoint
    if checkpoint.async_save:
        message = (
            "is true with useMegatronFsdp: Megatron Core 0.19.2 does not save its checkpoints asynchronously"
        )
        yield FieldError("spec.checkpoint.asyncSave", message, "set false, or leave useMegatronFsdp out")
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
