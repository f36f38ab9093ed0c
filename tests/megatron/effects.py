"""Effects of an argument list, to detect flags without effect."""

import dataclasses
import enum
import functools
from collections.abc import Callable
from typing import Any

from stages import Megatron, NotAccepted, Started

Settings = dict[str, Any]

READ_BY_THE_LOOP = {
    "data_cache_path": "folder of the datasets' index files",
    "data_path": "the datasets",
    "dataloader_type": "order of the samples",
    "eval_interval": "when the loop evaluates",
    "exit_signal_handler": "saves at SIGTERM",
    "log_interval": "when the loop logs",
    "manual_gc": "collects garbage between iterations",
    "manual_gc_interval": "every so many iterations",
    "mock_data": "random tokens",
    "num_workers": "loader processes",
    "override_opt_param_scheduler": "at the load of a checkpoint",
    "split": "train, validation and test shares",
}
"""Flags that take effect after these stages: the training loop reads them."""

NEEDS: dict[str, Callable[[Settings], bool]] = {
    "activation_func_clamp_value": lambda a: a["quick_geglu"],
    "adam_": lambda a: "adam" in a["optimizer"] or "muon" in a["optimizer"],
    "add_qkv_bias": lambda a: not a["multi_latent_attention"],
    "account_for_": lambda a: a["pipeline_model_parallel_size"] > 1,
    "cp_comm_type": lambda a: a["context_parallel_size"] > 1,
    "decoder_first_": lambda a: a["pipeline_model_parallel_size"] > 1,
    "decoder_last_": lambda a: a["pipeline_model_parallel_size"] > 1,
    "expert_model_parallel_size": lambda a: bool(a["num_experts"]),
    "expert_tensor_parallel_size": lambda a: bool(a["num_experts"]),
    "fp4_": lambda a: bool(a["fp4"]),
    "fp8_": lambda a: bool(a["fp8"]),
    "glu_linear_offset": lambda a: a["quick_geglu"],
    "kv_channels": lambda a: (
        not a["multi_latent_attention"] or a["hidden_size"] % a["num_attention_heads"] > 0
    ),
    "kv_lora_rank": lambda a: a["multi_latent_attention"],
    "lr_decay_iters": lambda a: bool(a["train_iters"]) and not a["train_samples"],
    "lr_decay_samples": lambda a: bool(a["train_samples"]),
    "lr_warmup_iters": lambda a: not a["train_samples"],
    "lr_warmup_samples": lambda a: bool(a["train_samples"]),
    "moe_": lambda a: bool(a["num_experts"]),
    "moe_aux_loss_coeff": lambda a: any(
        "aux" in kind for kind in _listed(a["moe_router_load_balancing_type"])
    ),
    "moe_router_bias_update_rate": lambda a: a["moe_router_enable_expert_bias"] and not _by_sinkhorn(a),
    "moe_router_enable_expert_bias": lambda a: not _by_sinkhorn(a),
    "moe_router_group_topk": lambda a: bool(a["moe_router_num_groups"]) and not _by_sinkhorn(a),
    "moe_router_num_groups": lambda a: bool(a["moe_router_group_topk"]) and not _by_sinkhorn(a),
    "moe_router_pre_softmax": lambda a: a["moe_router_score_function"] == "softmax" and not _by_sinkhorn(a),
    "moe_router_score_function": lambda a: not _by_sinkhorn(a),
    "moe_router_topk_scaling_factor": lambda a: not _by_sinkhorn(a),
    "moe_shared_expert_gate": lambda a: bool(a["moe_shared_expert_intermediate_size"]),
    "mtp_loss_scaling_factor": lambda a: bool(a["mtp_num_layers"]),
    "num_query_groups": lambda a: a["group_query_attention"],
    "q_lora_rank": lambda a: a["multi_latent_attention"],
    "qk_head_dim": lambda a: a["multi_latent_attention"],
    "qk_pos_emb_head_dim": lambda a: a["multi_latent_attention"],
    "recompute_method": lambda a: a["recompute_granularity"] == "full",
    "recompute_num_layers": lambda a: a["recompute_granularity"] == "full",
    "recompute_modules": lambda a: a["recompute_granularity"] == "selective",
    "rope_scaling_factor": lambda a: a["use_rope_scaling"],
    "rotary_": lambda a: a["position_embedding_type"] in ("rope", "yarn", "mrope"),
    "rotary_percent": lambda a: not a["multi_latent_attention"] or a["rope_type"] == "rope",
    "rotary_scaling_factor": lambda a: "yarn" in (a["position_embedding_type"], a["rope_type"]),
    "use_rope_scaling": lambda a: a["position_embedding_type"] == "rope" and not a["multi_latent_attention"],
    "v_head_dim": lambda a: a["multi_latent_attention"],
    "window_attn_skip_freq": lambda a: bool(a["window_size"]),
    "yarn_": lambda a: a["rope_type" if a["multi_latent_attention"] else "position_embedding_type"] == "yarn",
    "yarn_correction_range_round_to_int": lambda a: (
        a["position_embedding_type"] == "yarn" and not a["multi_latent_attention"]
    ),
}
"""Destination, or a prefix of several -> the argument without which Megatron does not use the value."""


DTYPES = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16"}
"""What Megatron makes of a value -> the value."""


def flags(words: list[str]) -> list[list[str]]:
    """The words, each flag with its values."""
    grouped: list[list[str]] = []
    for word in words:
        if word.startswith("--"):
            grouped.append([word])
        else:
            grouped[-1].append(word)
    return grouped


def without(words: list[str], flag: str) -> list[str]:
    return [word for group in flags(words) if group[0] != flag for word in group]


def altered(megatron: Megatron, words: list[str], started: Started) -> list[str]:
    """Flags whose value Megatron itself changed after reading it."""
    found = []
    for flag, *_ in flags(words):
        dest = megatron.dest(flag)
        given, used = started.parsed[dest], getattr(started.args, dest, "removed")
        if dest.endswith("_dtype"):
            used = DTYPES.get(str(used), used)
        if used != given and [used] != given and str(used) != str(given):
            found.append(f"{flag}: given {given}, used {used}")
    return found


def unmet(megatron: Megatron, words: list[str], started: Started) -> list[str]:
    """Flags that Megatron reads only beside another that is not there."""
    settings = vars(started.args)
    return [
        flag
        for flag, *_ in flags(words)
        if started.parsed[megatron.dest(flag)] != megatron.default(flag)
        for dest, needed in NEEDS.items()
        if (megatron.dest(flag).startswith(dest) if dest.endswith("_") else megatron.dest(flag) == dest)
        and not needed(settings)
    ]


def without_effect(
    megatron: Megatron, words: list[str], world_size: int, known: set[tuple[str, ...]]
) -> list[str]:
    """Flags that change nothing, though Megatron would not take their value by itself.

    `known` has flags with values that were seen to matter, and takes those that are seen now.
    """
    started = megatron.start(words, world_size)
    before, used = effects(started), dict(vars(started.args))
    found = []
    for group in flags(words):
        flag, dest = group[0], megatron.dest(group[0])
        if tuple(group) in known or dest in READ_BY_THE_LOOP:
            continue
        try:
            other = megatron.start(without(words, flag), world_size)
        except NotAccepted:
            other = None
        if other is not None and effects(other) == before and getattr(other.args, dest) != used.get(dest):
            found.append(" ".join(group))
        else:
            known.add(tuple(group))
    return found


def effects(started: Started) -> Settings:
    """Everything that the stages made, as plain values."""
    scheduler = {name: value for name, value in vars(started.scheduler).items() if name != "optimizer"}
    container = started.container
    return _plain(
        {
            "model": started.model,
            "optimizer": started.optimizer,
            "ddp": started.ddp,
            "checkpoint": container.checkpoint,
            "logger": container.logger,
            "rng": container.rng,
            "dist": container.dist,
            "scheduler": scheduler,
            "stages": started.stage_layers,
            "micro batches": started.micro_batches,
            "samples": started.samples,
            "degrees": started.degrees,
            "batch schedule": started.args.step_batch_size_schedule and started.args.global_batch_size,
            "tokenizer": started.tokenizer,
            "vocabulary": started.args.padded_vocab_size,
        }
    )


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # Not only the fields: Megatron adds YaRN's settings to a configuration that has none for them.
        return {name: _plain(inner) for name, inner in vars(value).items()}
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, functools.partial):
        return [_plain(value.func), _plain(value.args), _plain(value.keywords)]
    if callable(value) and hasattr(value, "__qualname__"):
        return value.__qualname__
    return value.name if isinstance(value, enum.Enum) else repr(value)


def _listed(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else [str(value)]


def _by_sinkhorn(settings: Settings) -> bool:
    return "sinkhorn" in _listed(settings["moe_router_load_balancing_type"])
