"""Megatron's arguments for a plan: complete, in a fixed order, without reliance on surprising defaults.

Order and grouping follow Megatron's settings tables: parallelism, model, experts, training, precision,
communication and memory, checkpoint, data, platform, and finally `megatronArgs`.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from megatron_contract.environment import CHECKPOINT_DIR, DATA_DIR, LOCAL_CHECKPOINT_DIR
from megatron_contract.time_limits import collective_minutes

from megatron_operator.api.base import ApiModel
from megatron_operator.api.recipe import BlendPart
from megatron_operator.api.status import Plan
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner import bridge
from megatron_operator.planner.automatic_flags import automatic_flags, has_fused_experts
from megatron_operator.planner.bridge_run import bridge_run
from megatron_operator.planner.checks.ineffective_flags import without_ineffective_settings
from megatron_operator.planner.checks.passthrough import flag_and_value, passthrough_arguments

_SHAPE = (
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "kv_channels",
    "max_position_embeddings",
)  # fmt: skip
_ROTARY = (
    "rotary_base", "rotary_percent", "use_rope_scaling", "rope_scaling_factor", "rotary_scaling_factor",
    "yarn_original_max_position_embeddings", "yarn_beta_fast", "yarn_beta_slow",
    "no_yarn_correction_range_round_to_int", "no_rope_fusion",
)  # fmt: skip
_LAYER = (
    "norm_epsilon", "apply_layernorm_1p", "swiglu", "squared_relu", "quick_geglu", "glu_linear_offset",
    "activation_func_clamp_value", "disable_bias_linear", "add_qkv_bias", "qk_layernorm", "softmax_type",
    "window_size", "window_attn_skip_freq", "untie_embeddings_and_output_weights", "init_method_std",
)  # fmt: skip
_LATENT = (
    "multi_latent_attention", "q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim",
    "v_head_dim", "rope_type",
)  # fmt: skip
_EXPERTS = (
    "num_experts", "moe_layer_freq", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size",
    "moe_shared_expert_gate", "moe_router_topk", "moe_router_score_function", "moe_router_pre_softmax",
    "moe_router_enable_expert_bias",
    "moe_router_bias_update_rate", "moe_router_num_groups", "moe_router_group_topk",
    "moe_router_topk_scaling_factor", "moe_router_dtype", "moe_z_loss_coeff", "moe_grouped_gemm",
    "moe_permute_fusion",
)  # fmt: skip
_LENGTH = (
    "train_iters", "train_samples", "lr", "min_lr", "lr_warmup_iters", "lr_warmup_samples",
    "lr_warmup_fraction", "lr_decay_iters", "lr_decay_samples", "weight_decay", "clip_grad", "adam_eps",
    "seed", "eval_interval", "eval_iters", "log_interval",
)  # fmt: skip
_PRECISION = (
    "bf16", "fp16", "fp8_format", "fp8_recipe", "fp8_amax_history_len", "fp8_amax_compute_algo",
    "fp8_param_gather", "fp4_format", "fp4_param_gather", "accumulate_allreduce_grads_in_fp32",
    "attention_softmax_in_fp32", "use_precision_aware_optimizer", "attention_backend",
)  # fmt: skip
_TIMEOUT_FLAG = "distributed-timeout-minutes"
_ON_CPU = (
    "--distributed-backend", "gloo", "--use-cpu-initialization", "--no-gradient-accumulation-fusion",
    "--no-masked-softmax-fusion", "--no-bias-gelu-fusion", "--no-bias-swiglu-fusion",
    "--no-bias-dropout-fusion", "--no-rope-fusion", "--no-persist-layer-norm",
)  # fmt: skip


def megatron_arguments(resolved: ResolvedRecipe, plan: Plan, name: str) -> list[str]:
    """All arguments of `megatron-train`; the run of the recipe `name` saves to /checkpoints/<name>.

    For a recipe of engine `bridge` its function and the overrides or, where the operator does not start it,
    the complete command that does.
    """
    if resolved.engine == "bridge" and resolved.starts:
        return bridge_run(resolved, plan, name).to_arguments()
    if resolved.engine == "bridge":
        return bridge.command(resolved, plan, name)
    resolved = without_ineffective_settings(resolved)
    words = [
        *_parallelism(resolved, plan),
        *_model(resolved, _flag("padded_vocab_size", _padded_vocab(resolved, plan))),
        *_experts(resolved),
        *_training(resolved, plan),
        *_memory(resolved, plan),
        *_checkpoint(resolved, plan, name),
        *_data(resolved, name),
        *_collective_timeout(resolved),
        *_platform(resolved),
        *automatic_flags(resolved, plan),
    ]
    extra = passthrough_arguments(resolved.megatron_args)
    return words + extra


def model_arguments(resolved: ResolvedRecipe) -> list[str]:
    """Arguments of Megatron's own loop that decide what the model computes, for `megatron-convert`.

    They depend on neither the layout nor the schedule: the vocabulary is not padded.
    """
    resolved = without_ineffective_settings(resolved)
    vocabulary = _flag("vocab_size", resolved.model.vocab_size)
    extra = passthrough_arguments(resolved.megatron_args)
    return [*_model(resolved, vocabulary), *_experts(resolved), *extra]


def _flag(name: str, value: object) -> list[str]:
    """One setting: none and false are omitted, true is a switch, any other value follows its flag."""
    flag = f"--{name.replace('_', '-')}"
    if value is None or value is False:
        return []
    if value is True:
        return [flag]
    return flag_and_value(flag, _number(value) if isinstance(value, float) else str(value))


def _number(value: float) -> str:
    """Shortest text that reads back as the same number."""
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def _flags(section: ApiModel, names: Iterable[str], **defaults: Any) -> list[str]:
    """Settings of a section in the order of `names`; `defaults` replace those that are not set."""
    words = []
    for name in names:
        value = getattr(section, name)
        words += _flag(name, defaults.get(name) if value is None else value)
    return words


def _parallelism(resolved: ResolvedRecipe, plan: Plan) -> list[str]:
    words = [
        *_flag("tensor_model_parallel_size", plan.tensor_model_parallel_size),
        *_flag("pipeline_model_parallel_size", plan.pipeline_model_parallel_size),
        *_flag("context_parallel_size", plan.context_parallel_size),
        *_flag("sequence_parallel", plan.sequence_parallel),
    ]
    if plan.context_parallel_size > 1:
        kind = resolved.parallelism.cp_comm_type
        # Megatron's help names allgather, and Transformer Engine, which gets it unchanged, knows all_gather.
        words += _flag("cp_comm_type", "all_gather" if kind == "allgather" else kind)
    if resolved.model.num_experts:
        words += _flag("expert_model_parallel_size", plan.expert_model_parallel_size)
        words += _flag("expert_tensor_parallel_size", plan.expert_tensor_parallel_size)
    if plan.pipeline_model_parallel_layout is not None:
        return words + _flag("pipeline_model_parallel_layout", plan.pipeline_model_parallel_layout)
    for name in (
        "decoder_first_pipeline_num_layers",
        "decoder_last_pipeline_num_layers",
        "account_for_embedding_in_pipeline_split",
        "account_for_loss_in_pipeline_split",
    ):
        words += _flag(name, getattr(plan, name))
    return words + _flag("num_virtual_stages_per_pipeline_rank", plan.virtual_pipeline_model_parallel_size)


def _model(resolved: ResolvedRecipe, vocabulary: list[str]) -> list[str]:
    m = resolved.model
    position = m.position_embedding_type or "learned_absolute"
    words = _flags(m, _SHAPE)
    grouped = m.num_query_groups is not None and m.num_query_groups != m.num_attention_heads
    if grouped and not m.multi_latent_attention:
        words += ["--group-query-attention", *_flag("num_query_groups", m.num_query_groups)]
    words += _flags(m, _LATENT)
    words += _flag("position_embedding_type", position)
    words += _flags(m, _ROTARY)
    words += _flag("normalization", m.normalization or "LayerNorm")
    words += _flags(m, _LAYER)
    if m.squared_relu and not m.disable_bias_linear and resolved.profile.platform == "gpu":
        words.append("--no-bias-gelu-fusion")
    words += _flags(m, ("attention_dropout", "hidden_dropout"), attention_dropout=0.1, hidden_dropout=0.1)
    words += vocabulary
    return words + _flags(m, ("mtp_num_layers", "mtp_loss_scaling_factor"))


def _padded_vocab(resolved: ResolvedRecipe, plan: Plan) -> int:
    multiple = (resolved.model.make_vocab_size_divisible_by or 128) * plan.tensor_model_parallel_size
    return -(-(resolved.model.vocab_size or 1) // multiple) * multiple


def _experts(resolved: ResolvedRecipe) -> list[str]:
    m = resolved.model
    if not m.num_experts:
        return []
    grouped_on_gpus = m.moe_grouped_gemm and has_fused_experts(resolved)
    balancing = m.moe_router_load_balancing_type or "aux_loss"
    return [
        *_flags(m, _EXPERTS, moe_router_topk=2, moe_permute_fusion=has_fused_experts(resolved)),
        # TEGroupedMLP asserts it (megatron/core/transformer/moe/experts.py), when the model is built.
        *(["--no-bias-dropout-fusion"] if grouped_on_gpus and not m.disable_bias_linear else []),
        *_flag("moe_router_load_balancing_type", balancing),
        *_flags(m, ("moe_aux_loss_coeff",), moe_aux_loss_coeff=0.0 if "aux" in balancing else None),
        *_flag("moe_token_dispatcher_type", m.moe_token_dispatcher_type or _dispatcher(resolved)),
    ]


def _dispatcher(resolved: ResolvedRecipe) -> str:
    """alltoall scales with expert parallelism; gloo does not support it, but does support allgather."""
    return "allgather" if resolved.profile.platform == "cpu" else "alltoall"


def _training(resolved: ResolvedRecipe, plan: Plan) -> list[str]:
    t = resolved.training
    words = [*_flag("seq_length", t.seq_length), *_flag("micro_batch_size", plan.micro_batch_size)]
    if t.step_batch_size_schedule is not None:
        words += _flag("step_batch_size_schedule", t.step_batch_size_schedule)
        words += _flag("eval_global_batch_size", plan.global_batch_size)
    else:
        words += _flag("global_batch_size", plan.global_batch_size)
    words += _flag("optimizer", t.optimizer or "adam")
    words += _flags(t, ("adam_beta1", "adam_beta2"), adam_beta1=0.9, adam_beta2=0.999)
    words += _flag("lr_decay_style", t.lr_decay_style or "linear")
    words += _flags(t, _LENGTH)
    words += _flags(t, _PRECISION)
    default = "local" if resolved.profile.platform == "cpu" else "transformer_engine"
    return words + _flag("transformer_impl", t.transformer_impl or default)


_FSDP: Final = ("--megatron-fsdp-main-grads-dtype", "fp32", "--megatron-fsdp-grad-comm-dtype", "fp32")
"""Gradients are summed in FP32, as without FSDP."""


def _memory(resolved: ResolvedRecipe, plan: Plan) -> list[str]:
    words = []
    for name in (
        "use_distributed_optimizer",
        "use_megatron_fsdp",
        "overlap_grad_reduce",
        "overlap_param_gather",
        "recompute_granularity",
        "recompute_method",
        "recompute_num_layers",
    ):
        words += _flag(name, getattr(plan, name))
    if plan.use_megatron_fsdp:
        words += _FSDP
        # On CPUs no run has the fusion; on GPUs it was not run with FSDP.
        words += ["--no-gradient-accumulation-fusion"] if resolved.profile.platform == "gpu" else []
    if plan.recompute_modules:
        words += ["--recompute-modules", *plan.recompute_modules]
    # Megatron asserts sequence parallelism with it (arguments.py); a published layout may have planned TP 1.
    overlap = _flag("tp_comm_overlap", plan.sequence_parallel and resolved.parallelism.tp_comm_overlap)
    return words + overlap + _flag("ddp_bucket_size", resolved.parallelism.ddp_bucket_size)


def _checkpoint(resolved: ResolvedRecipe, plan: Plan, name: str) -> list[str]:
    spec, directory, source = resolved.checkpoint, f"{CHECKPOINT_DIR}/{name}", resolved.init.source
    words = [
        *_flag("save", directory),
        *_flag("load", directory),
        *_flag("pretrained_checkpoint", source.checkpoint if source else None),
        *_flag("save_interval", spec.save_interval),
        *_flag("ckpt_format", "fsdp_dtensor" if plan.use_megatron_fsdp else "torch_dist"),
        "--exit-signal-handler",
        "--override-opt-param-scheduler",
    ]
    words += [*_flag("no_save_optim", spec.no_save_optim), *_flag("no_save_rng", spec.no_save_rng)]
    if spec.async_save:
        words += ["--async-save", "--use-persistent-ckpt-worker"]
    if spec.local is not None:
        words += [
            *_flag("non_persistent_save_interval", spec.local.save_interval),
            *_flag("non_persistent_ckpt_type", "global"),
            *_flag("non_persistent_global_ckpt_dir", f"{LOCAL_CHECKPOINT_DIR}/{name}"),
        ]
    whole = plan.use_megatron_fsdp or not plan.use_distributed_optimizer
    if resolved.recovery.elastic is not None and not whole and not spec.no_save_optim:
        words.append("--dist-ckpt-optim-fully-reshardable")
    return words


def _data(resolved: ResolvedRecipe, name: str) -> list[str]:
    data, tokenizer = resolved.data, resolved.data.tokenizer
    words = []
    if tokenizer is not None:
        words += _flags(tokenizer, ("tokenizer_type", "tokenizer_model", "vocab_file", "merge_file"))
        # The vocabulary of tiktoken is cut to this size; without it Megatron asks for 131,072 entries.
        if tokenizer.tokenizer_type in ("NullTokenizer", "TikTokenizer"):
            words += _flag("vocab_size", resolved.model.vocab_size)
    if data.mock_data:
        words.append("--mock-data")
    elif data.blend:
        evaluated = [part for part in data.blend if part.validation]
        trained = [part for part in data.blend if not part.validation]
        words += ["--train-data-path" if evaluated else "--data-path", *_mix(trained)]
        words += ["--valid-data-path", *_mix(evaluated)] if evaluated else []
        words += _flag("data_cache_path", f"{CHECKPOINT_DIR}/{name}/data-cache")
    words += _flag("split", data.split)
    return words + _flags(data, ("dataloader_type", "num_workers"))


def _mix(parts: Sequence[BlendPart]) -> list[str]:
    """Datasets as Megatron lists them: a weight before each, where there are several."""
    words = []
    for part in parts:
        words += [_number(part.weight)] if len(parts) > 1 else []
        words.append(f"{DATA_DIR}/{part.path}")
    return words


def _collective_timeout(resolved: ResolvedRecipe) -> list[str]:
    """A time-out beyond those of the watchdogs. Without a watchdog, Megatron's own ten minutes stand."""
    timeout = resolved.recovery.hang_timeout
    if timeout == "off" or _TIMEOUT_FLAG in resolved.megatron_args:
        return []
    seconds = None if timeout == "auto" else float(timeout.removesuffix("s"))
    return [f"--{_TIMEOUT_FLAG}", str(collective_minutes(seconds))]


def _platform(resolved: ResolvedRecipe) -> list[str]:
    return list(_ON_CPU) if resolved.profile.platform == "cpu" else []
