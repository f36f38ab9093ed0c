"""Calls every recipe function of the installed megatron-bridge and writes what each sets, as JSON.

A process of its own, because the stand-ins that it needs (`stand_ins`, `hub`) stay in it:

    python tests/bridge/wheel.py settings.json runs.json

`{"functions": {NAME: {SETTING: VALUE}}, "failed": {NAME: "Error: text"}, "refused": [...],
"schedules": [...], "hidden": [...]}`, a function under each of its names. Functions of the trainer's image
are among them; `hidden` has the names of those of Bridge that they stand in front of. `runs.json` has lists
of arguments as the operator renders them; `refused` has the error of the trainer for each, null where it sets
all overrides, and `schedules` what Bridge makes of them. Of two functions of one name the benchmark counts,
as for Bridge's own launcher (run_recipe.py).
"""

import contextlib
import importlib
import inspect
import json
import logging
import os
import pkgutil
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import stand_ins

LIBRARY, BENCHMARKS = "megatron.bridge.recipes", "megatron.bridge.perf_recipes"
NO_RECIPES = (f"{LIBRARY}.utils", f"{LIBRARY}.common")

FIELDS = {
    "tensor_model_parallel_size": "model.tensor_model_parallel_size",
    "pipeline_model_parallel_size": "model.pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size": "model.virtual_pipeline_model_parallel_size",
    "context_parallel_size": "model.context_parallel_size",
    "expert_model_parallel_size": "model.expert_model_parallel_size",
    "expert_tensor_parallel_size": "model.expert_tensor_parallel_size",
    "sequence_parallel": "model.sequence_parallel",
    "micro_batch_size": "train.micro_batch_size",
    "global_batch_size": "train.global_batch_size",
    "seq_length": "dataset.seq_length",
    "max_steps": "train.train_iters",
    "warmup_iters": "scheduler.lr_warmup_iters",
    "decay_iters": "scheduler.lr_decay_iters",
    "lr": "optimizer.lr",
    "min_lr": "optimizer.min_lr",
    "optimizer": "optimizer.optimizer",
    "weight_decay": "scheduler.end_weight_decay",
    "adam_beta1": "optimizer.adam_beta1",
    "adam_beta2": "optimizer.adam_beta2",
    "save_interval": "checkpoint.save_interval",
    "save_dir": "checkpoint.save",
    "load_dir": "checkpoint.load",
}
SET_BY_FIELD = (
    "model.num_layers_in_first_pipeline_stage",
    "model.num_layers_in_last_pipeline_stage",
    "model.account_for_embedding_in_pipeline_split",
    "model.account_for_loss_in_pipeline_split",
    "model.pipeline_model_parallel_layout",
    "model.recompute_granularity",
    "model.recompute_method",
    "model.recompute_num_layers",
    "optimizer.weight_decay",
    "scheduler.start_weight_decay",
    "scheduler.end_weight_decay",
    "optimizer.clip_grad",
    "optimizer.adam_beta1",
    "optimizer.adam_beta2",
    "optimizer.adam_eps",
    "scheduler.lr_decay_style",
    "rng.seed",
    "logger.log_interval",
    "scheduler.lr_warmup_iters",
    "scheduler.lr_decay_iters",
    "optimizer.min_lr",
)
"""Additional fields that a command may set as FIELD=VALUE."""
"""Setting -> its path in a ConfigContainer. Most are options of run_recipe.py."""

SCAN_SMS = 108
"""Megatron's default of `moe_hybridep_num_sms_preprocessing`."""
SWITCHES = {
    "a2a-stream": "high_priority_a2a_comm_stream",
    "fp8-output": "fp8_output_proj",
    "mla-fusion": "mla_down_proj_fusion",
    "qkv-rope": "fused_single_qkv_rope",
    "router-padding": "moe_router_padding_for_quantization",
}
"""Option of the catalog's tables -> the switch of the model that it stands for."""

Function = Callable[[], Any]


def functions() -> dict[str, Function]:
    """Every recipe function by name."""
    found: dict[str, Function] = {}
    for root in (LIBRARY, BENCHMARKS):
        package = importlib.import_module(root)
        for module in _modules(package):
            for name, function in vars(module).items():
                home = getattr(function, "__module__", "") or ""
                is_here = home.startswith(f"{root}.") and not home.startswith(NO_RECIPES)
                is_recipe = name.endswith("_config") and not name.startswith("_")
                if is_here and is_recipe and inspect.isfunction(function):
                    found[name] = function
        if root == LIBRARY:
            # Submodules may differ; users import from the package.
            found = {name: getattr(package, name, function) for name, function in found.items()}
    return found


def _modules(package: types.ModuleType) -> Iterator[types.ModuleType]:
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        yield importlib.import_module(info.name)


FREEZES = {
    "language": "freeze_language_model",
    "vision": "freeze_vision_model",
    "projector": "freeze_vision_projection",
}
"""Part of a vision-language model -> the field by which a function freezes it."""


def settings(config: Any) -> dict[str, Any]:
    """Layout, batch and schedule of a ConfigContainer."""
    found = {name: attrgetter(path)(config) for name, path in FIELDS.items() if name != "seq_length"}
    # Diffusion datasets have no length of their own.
    found["seq_length"] = getattr(config.dataset, "seq_length", None) or config.model.seq_length
    for name in ("embedding", "loss"):
        found[f"account_for_{name}"] = getattr(config.model, f"account_for_{name}_in_pipeline_split", False)
    for name in ("dim", "alpha", "target_modules"):
        found[f"lora_{name}"] = getattr(config.peft, name, None)
    found["frozen"] = [part for part, field in FREEZES.items() if getattr(config.model, field, False)]
    found["fast"] = fast_settings(config)
    found["lacking"] = [path for path in SET_BY_FIELD if not _has(config, path)]
    return found


def fast_settings(config: Any) -> list[str]:
    """What makes a function fast, as options of the catalog's tables (`catalog.performance_options`)."""
    model, ddp, optimizer = config.model, config.ddp, config.optimizer
    comm, precision = _parts(config, "comm_overlap"), _parts(config, "mixed_precision")
    words = []
    if precision and precision.get("grad_reduce_in_fp32") is False:
        words.append("grads=bf16")
    for number in ("fp8", "fp4"):
        if precision.get(f"{number}_param") and precision.get(number):
            words.append(f"gather={number}")
    if getattr(optimizer, "use_precision_aware_optimizer", False):
        formats = (optimizer.main_grads_dtype, optimizer.exp_avg_dtype, optimizer.exp_avg_sq_dtype)
        short = {"torch.float32": "fp32", "torch.bfloat16": "bf16"}
        words.append(f"aware={','.join(short.get(str(each), str(each)) for each in formats)}")
    experts = getattr(model, "num_moe_experts", None)
    if experts and getattr(model, "moe_token_dispatcher_type", None) == "flex":
        words += [f"flex={model.moe_flex_dispatcher_backend}", *_flex(model)]
    words += [word for word, field in SWITCHES.items() if getattr(model, field, False)]
    words += ["dsa=cudnn"] if _has_sparse_kernels(model) else []
    if getattr(model, "use_transformer_engine_op_fuser", False):
        words.append(f"fuser={model.moe_mlp_glu_interleave_size or 0}")
    words += ["fp8-attention"] if precision.get("fp8_dot_product_attention") else []
    if comm.get("overlap_moe_expert_parallel_comm"):
        words += ["ep-overlap", *(["delay-wgrad"] if comm.get("delay_wgrad_compute") else [])]
    if comm.get("tp_comm_overlap") and model.tensor_model_parallel_size > 1:
        words += ["tp-overlap", *(["tp-buffers"] if comm.get("tp_comm_overlap_cfg") else [])]
    words += _graphs(model)
    fsdp = getattr(ddp, "use_megatron_fsdp", False)
    words += ["fsdp"] if fsdp else ["nccl-ub"] if getattr(ddp, "nccl_ub", False) else []
    if model.recompute_granularity == "full":
        words.append(f"recompute=full:{model.recompute_method}:{model.recompute_num_layers}")
    elif model.recompute_granularity == "selective":
        # Megatron fills in core_attn only where nothing is given; an empty list recomputes nothing.
        modules = getattr(model, "recompute_modules", None)
        words += [f"recompute={','.join(modules or ['core_attn'])}"] if modules != [] else []
    offloading = ("cpu_offloading", "fine_grained_activation_offloading")
    return words + (["offload"] if any(getattr(model, each, False) for each in offloading) else [])


def _flex(model: Any) -> list[str]:
    """Multiprocessors of the dispatcher flex, and its buffers of a fixed size."""
    words = []
    names = ("moe_flex_dispatcher_num_sms", "moe_hybridep_num_sms", "moe_deepep_num_sms")
    if count := next(filter(None, (getattr(model, name, None) for name in names)), None):
        preprocessing = model.moe_hybridep_num_sms_preprocessing
        words.append(f"sms={count}" + (f",{preprocessing}" if preprocessing != SCAN_SMS else ""))
    if model.moe_expert_rank_capacity_factor is not None:
        words.append(f"budget={float(model.moe_expert_rank_capacity_factor)}")
    if model.moe_paged_stash:
        sizes = [getattr(model, f"moe_paged_stash_buffer_size_factor_{each}") for each in ("cuda", "cpu")]
        words.append(f"stash={','.join(str(float(size)) for size in sizes)}")
    return words


def _has_sparse_kernels(model: Any) -> bool:
    """Whether sparse attention runs in cuDNN's kernels; DeepSeek-V4 has a switch of its own for them."""
    switch = getattr(model, "apply_dsa_kernel_fusion", False)
    return switch or getattr(model, "dsa_kernel_backend", "none") == "cudnn"


def _parts(config: Any, name: str) -> dict[str, Any]:
    """Fields of a part that may be missing, or named by a string."""
    part = getattr(config, name, None)
    return {} if part is None or isinstance(part, str) else vars(part)


def _graphs(model: Any) -> list[str]:
    names = [getattr(model, field, None) or [] for field in ("cuda_graph_scope", "cuda_graph_modules")]
    lists = [[each] if isinstance(each, str) else [str(x).rsplit(".")[-1] for x in each] for each in names]
    scopes = [[x for x in each if x != "full"] for each in lists]
    modules, impl = scopes[0] or scopes[1], getattr(model, "cuda_graph_impl", "none")
    if impl == "full_iteration" or (impl == "local" and "full_iteration" in modules):
        return ["graphs=full_iteration"]
    if impl in ("local", "transformer_engine"):
        return [f"graphs={impl}" + (f":{','.join(modules)}" if modules else "")]
    return []


def _has(config: Any, path: str) -> bool:
    section, field = path.split(".")
    return hasattr(getattr(config, section), field)


def outcome(
    arguments: list[str], functions: dict[str, Function]
) -> tuple[str | None, dict[str, float] | None]:
    """Why the trainer does not set the overrides of a run in what its function returns, or why Bridge refuses
    the samples' settings, and the schedule where neither is so."""
    from megatron_contract.bridge_run import (
        BASE_OF_EXPORT,
        BLEND,
        CHATS,
        IMAGE_TEXT,
        MOCK_DATA,
        MODEL_FOLDER,
        PACKED_FOLDER,
        PEFT_SCHEME,
        SOUND_TEXT,
        BridgeRun,
    )
    from megatron_trainer.bridge import configuration, diffusion, minimax_m3
    from megatron_trainer.worker.failures import RankError

    run = BridgeRun.from_arguments(arguments)
    scheme, function = run.overrides.get(PEFT_SCHEME), functions[run.function]
    with minimax_m3.whole() if run.overrides.get(IMAGE_TEXT) else contextlib.nullcontext():
        config = configuration.call_with_adapters(function, str(scheme)) if scheme else function()
    if run.overrides.get(IMAGE_TEXT) or run.overrides.get(SOUND_TEXT):
        config.dataset = configuration._image_text(run)
    elif diffusion.is_diffusion(config):
        diffusion.set_dataset(config, fine_tunes="_sft_" in run.function)
    ours = (
        *(BASE_OF_EXPORT, BLEND, CHATS, IMAGE_TEXT, MOCK_DATA, MODEL_FOLDER, PACKED_FOLDER, PEFT_SCHEME),
        SOUND_TEXT,
    )
    try:
        for path, value in run.overrides.items():
            if path not in ours:
                configuration._set(config, path, value)
        if (chats := run.overrides.get(CHATS)) is not None:
            config.dataset.preprocessing = configuration.preprocessing(chats=bool(chats))
            config.dataset.validate()
    except (RankError, ValueError) as error:
        return str(error), None
    return None, schedule(config)


def schedule(config: Any) -> dict[str, float]:
    """Samples of a run and of its decay, as Bridge counts them, and the weight decay of the first step."""
    from megatron.bridge.training.optim import _get_scheduler

    config._calculate_scheduler_steps()
    group = {"lr": 0.0, "weight_decay": config.optimizer.weight_decay}
    optimizer: Any = types.SimpleNamespace(param_groups=[group])
    _get_scheduler(config.optimizer, config.scheduler, optimizer).step(config.train.global_batch_size)
    return {
        "samples": config.train.train_iters * config.train.global_batch_size,
        "decay": config.scheduler.lr_decay_steps,
        "weight_decay": group["weight_decay"],
    }


def main() -> None:
    """Call all functions and write the file that is named on the command line."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    done: dict[str, Any] = {"functions": {}, "failed": {}}
    stand_ins.install()
    import hub  # transformers reads at import that it is offline

    hub.answer_locally()
    from megatron_trainer.bridge.recipes import FUNCTIONS

    found = functions()
    done["hidden"] = sorted(found.keys() & FUNCTIONS.keys())
    found |= FUNCTIONS
    for name, function in found.items():
        hub.ASKED.clear()
        try:
            done["functions"][name] = settings(function()) | {"architectures": sorted(set(hub.ASKED))}
        except Exception as error:
            done["failed"][name] = " ".join(f"{type(error).__name__}: {error}".split())
    runs = json.loads(Path(sys.argv[2]).read_text())
    outcomes = [outcome(run, found) for run in runs]
    done["refused"], done["schedules"] = zip(*outcomes, strict=True)
    Path(sys.argv[1]).write_text(json.dumps(done))
    os._exit(0)  # hollow modules fail at interpreter shutdown


if __name__ == "__main__":
    main()
