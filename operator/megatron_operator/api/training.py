"""Hyperparameters and parallelism, in Megatron's own setting names."""

from typing import Annotated, Literal

from pydantic import Field

from megatron_operator.api.base import ApiModel
from megatron_operator.api.bounds import (
    Accelerators,
    Batch,
    Fraction,
    FractionBelowOne,
    Iterations,
    Large,
    Layers,
    NonNegative,
    Positions,
    Positive,
    Samples,
    Text,
)

AMOUNT_PATTERN = r"^[0-9]+(\.[0-9]+)?[KMBT]?$"

Amount = Annotated[str, Field(pattern=AMOUNT_PATTERN, max_length=24)]
"""A count with an optional suffix: K 1e3, M 1e6, B 1e9, T 1e12."""


RecomputeModule = Literal["core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"]


class TrainingSpec(ApiModel):
    """Batch, length of the run, optimizer, learning rate, precision."""

    seq_length: Positions | None = None
    """Tokens per sample."""
    micro_batch_size: Batch | None = None
    """Samples per forward pass of one data-parallel rank."""
    global_batch_size: Batch | None = None
    """Samples per iteration over all ranks."""
    step_batch_size_schedule: Text | None = None
    """Batch ramp-up, `tokens:batch` pairs: `0:384 200B:768 400B:1152`. Excludes globalBatchSize."""
    train_iters: Iterations | None = None
    """Length of the run in iterations."""
    train_samples: Samples | None = None
    """Length of the run in samples."""
    train_tokens: Amount | None = None
    """Length of the run in tokens (`15T`); converted to trainSamples or trainIters."""
    optimizer: Literal["adam", "sgd", "muon", "dist_muon"] | None = None
    """Optimizer; Megatron's adam is AdamW."""
    lr: Positive | None = None
    """Peak learning rate."""
    min_lr: NonNegative | None = None
    """Learning rate at the end of the decay."""
    lr_decay_style: Literal["constant", "linear", "cosine", "inverse-square-root", "WSD"] | None = None
    """Decay schedule of the learning rate (Megatron's default is linear). WSD needs lr-wsd-decay-iters
    or lr-wsd-decay-samples of megatronArgs; engine bridge, which takes neither, refuses it."""
    lr_warmup_iters: Annotated[int, Field(ge=0, le=10**12)] | None = None
    """Warm-up in iterations; with trainIters only."""
    lr_warmup_samples: Annotated[int, Field(ge=0, le=10**15)] | None = None
    """Warm-up in samples; with trainSamples only."""
    lr_warmup_fraction: FractionBelowOne | None = None
    """Warm-up as a fraction of the decay; excludes the other two."""
    lr_decay_iters: Iterations | None = None
    """Length of the decay in iterations; default trainIters."""
    lr_decay_samples: Samples | None = None
    """Length of the decay in samples; default trainSamples."""
    lr_scaling: Literal["none", "linear", "sqrt"] | None = None
    """How lr scales with a globalBatchSize other than the catalog's: not, linearly, by its square root."""
    weight_decay: NonNegative | None = None
    """Decoupled weight decay."""
    clip_grad: NonNegative | None = None
    """Largest global gradient norm."""
    adam_beta1: Fraction | None = None
    """Decay of Adam's first moment."""
    adam_beta2: Fraction | None = None
    """Decay of Adam's second moment (Megatron's default is 0.999)."""
    adam_eps: Positive | None = None
    """Epsilon of Adam."""
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] | None = None
    """Seed of weights, dropout and data order."""
    eval_interval: Iterations | None = None
    """Iterations between two evaluations."""
    eval_iters: Annotated[int, Field(ge=0, le=10**12)] | None = None
    """Iterations of one evaluation; 0 disables evaluation."""
    log_interval: Iterations | None = None
    """Iterations between two lines of Megatron's log."""
    bf16: bool | None = None
    """BF16 parameters and activations; default on GPUs unless fp16 is set. False trains in FP32."""
    fp16: bool | None = None
    """FP16 parameters and activations."""
    fp8_format: Literal["hybrid", "e4m3"] | None = Field(default=None, alias="fp8Format")
    """FP8 matrix products with Transformer Engine; requires Ada, Hopper or later and bf16."""
    fp8_recipe: Literal["delayed", "tensorwise", "mxfp8", "blockwise"] | None = Field(
        default=None, alias="fp8Recipe"
    )
    """FP8 scaling recipe."""
    fp8_amax_history_len: Batch | None = Field(default=None, alias="fp8AmaxHistoryLen")
    """History of delayed scaling, in steps."""
    fp8_amax_compute_algo: Literal["max", "most_recent"] | None = Field(
        default=None, alias="fp8AmaxComputeAlgo"
    )
    """How delayed scaling reduces that history."""
    fp8_param_gather: bool | None = Field(default=None, alias="fp8ParamGather")
    """Gather parameters in FP8."""
    fp4_format: Literal["e2m1"] | None = Field(default=None, alias="fp4Format")
    """FP4 matrix products (NVFP4) with Transformer Engine; requires Blackwell or later and bf16. Excludes
    fp8Format."""
    fp4_param_gather: bool | None = Field(default=None, alias="fp4ParamGather")
    """Gather parameters in FP4."""
    accumulate_allreduce_grads_in_fp32: bool | None = Field(
        default=None, alias="accumulateAllreduceGradsInFp32"
    )
    """Sum gradients over micro batches and ranks in FP32, Megatron's default with BF16, not with FP16. False
    sums them in the format of the parameters."""
    attention_softmax_in_fp32: bool | None = Field(default=None, alias="attentionSoftmaxInFp32")
    """Compute the attention softmax in FP32."""
    use_precision_aware_optimizer: bool | None = None
    """Allow optimizer states in lower precision."""
    attention_backend: Literal["auto", "flash", "fused", "unfused", "local"] | None = None
    """Attention kernel."""
    transformer_impl: Literal["local", "transformer_engine"] | None = None
    """Implementation of the transformer layers."""


class ParallelismSpec(ApiModel):
    """How the model is mapped to the GPUs. Sizes that are set are kept, the others are planned."""

    tensor_model_parallel_size: Accelerators | None = None
    """TP: GPUs that share each layer; inside one NVLink domain."""
    pipeline_model_parallel_size: Accelerators | None = None
    """PP: stages that share the layers."""
    num_virtual_stages_per_pipeline_rank: Layers | None = None
    """VP: interleaved model chunks of each stage."""
    context_parallel_size: Accelerators | None = None
    """CP: GPUs that share each sequence."""
    expert_model_parallel_size: Accelerators | None = None
    """EP: GPUs that share the experts; a part of TP x CP x DP."""
    expert_tensor_parallel_size: Accelerators | None = None
    """ETP: GPUs that share each expert (Megatron's default is TP)."""
    sequence_parallel: bool | None = None
    """SP: split norms and dropouts over the TP group."""
    decoder_first_pipeline_num_layers: Layers | None = None
    """Layers of the first stage, where stages are uneven."""
    decoder_last_pipeline_num_layers: Layers | None = None
    """Layers of the last stage, where stages are uneven."""
    account_for_embedding_in_pipeline_split: bool | None = None
    """Count the embedding as a layer in the split."""
    account_for_loss_in_pipeline_split: bool | None = None
    """Count the loss as a layer in the split."""
    pipeline_model_parallel_layout: Text | None = None
    """Megatron's layout string (`Et*4|t*4|...|tmL`)."""
    cp_comm_type: Literal["p2p", "a2a", "allgather", "a2a+p2p"] | None = None
    """How context-parallel ranks exchange keys and values."""
    use_distributed_optimizer: bool | None = None
    """Shard optimizer states over data-parallel ranks."""
    use_megatron_fsdp: bool | None = None
    """Shard weights and gradients over them too (FSDP): dense models in BF16, or without SwiGLU in FP32,
    without PP and CP, and without `init.from` and `export`."""
    overlap_grad_reduce: bool | None = None
    """Overlap gradient reduction with the backward pass."""
    overlap_param_gather: bool | None = None
    """Overlap parameter gathering with the forward pass."""
    tp_comm_overlap: bool | None = None
    """Overlap tensor-parallel communication with computation; requires sequenceParallel."""
    ddp_bucket_size: Large | None = None
    """Elements of one gradient bucket."""
    recompute_granularity: Literal["full", "selective"] | None = None
    """Activation recomputation in the backward pass: whole layers, or selected modules."""
    recompute_method: Literal["uniform", "block"] | None = None
    """How full recomputation selects layers."""
    recompute_num_layers: Layers | None = None
    """Layers per recomputed unit (uniform) or recomputed layers per stage (block)."""
    recompute_modules: Annotated[list[RecomputeModule], Field(min_length=1, max_length=16)] | None = None
    """Modules that selective recomputation covers (Megatron's default is core_attn)."""
