"""Imports Megatron-Bridge, calls a recipe function and applies the overrides of a run to what it returns."""

import contextlib
import dataclasses
import importlib
import inspect
import os
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from megatron_contract.bridge_run import (
    BASE_OF_EXPORT,
    BLEND,
    CHATS,
    IMAGE_TEXT,
    MAX_EPOCHS,
    MOCK_DATA,
    MODEL_FOLDER,
    NULL_TOKENIZER,
    PACKED_FOLDER,
    PEFT_SCHEME,
    SOUND_TEXT,
    VALIDATION_DATA,
    BridgeRun,
    Value,
)
from megatron_contract.environment import DEFAULT_PLATFORM, ENV_PLATFORM
from megatron_contract.exit_codes import ExitCode

from megatron_trainer.bridge import (
    absent_packages,
    adapter_norms,
    agreed_weights,
    bucket_sizes,
    corpus,
    deepseek_v4,
    diffusion,
    dora_magnitudes,
    exaone45,
    falcon_h1,
    gated_delta_net,
    gemma4,
    glm,
    kimi,
    llama_nemotron,
    local_layers,
    minimax_m3,
    model_folder,
    nemotron_vl,
    packing,
    parameter_order,
    partial_rotary,
    query_norms,
    qwen3_omni,
    recipes,
    step,
    vision_layers,
    vocabulary,
)
from megatron_trainer.bridge.agreed_weights import Start
from megatron_trainer.bridge.family_layers import build_locally
from megatron_trainer.bridge.starting_weights import StartingWeights
from megatron_trainer.platform import gpu
from megatron_trainer.read_errors import is_temporary
from megatron_trainer.worker import dataset_helpers
from megatron_trainer.worker.failures import RankError

PLATFORM = os.environ.get(ENV_PLATFORM) or DEFAULT_PLATFORM
_OURS = (
    *(BASE_OF_EXPORT, BLEND, CHATS, IMAGE_TEXT, MAX_EPOCHS, MOCK_DATA, MODEL_FOLDER, PACKED_FOLDER),
    *(PEFT_SCHEME, SOUND_TEXT, VALIDATION_DATA),
)
_TRAINING_FILE = "training.jsonl"
_PIPELINE_LAYOUT = "model.pipeline_model_parallel_layout"
_ACTIVATION = "model.activation_func"

ON_CPU: dict[str, Value] = {
    "model.transformer_impl": "local",
    "model.use_cpu_initialization": True,
    "model.gradient_accumulation_fusion": False,
    "model.bias_activation_fusion": False,
    "model.masked_softmax_fusion": False,
    "model.bias_dropout_fusion": False,
    "model.apply_rope_fusion": False,
    "model.persist_layer_norm": False,
    "model.cross_entropy_loss_fusion": False,
    "model.cross_entropy_fusion_impl": "native",
    "model.moe_grouped_gemm": False,
    "model.moe_permute_fusion": False,
    "model.moe_router_fusion": False,
    "model.moe_shared_expert_overlap": False,
    "model.moe_token_dispatcher_type": "allgather",
    "model.tp_comm_overlap": False,
    "model.sequence_parallel": False,
    "model.recompute_granularity": None,
    "model.cuda_graph_impl": "none",
    "model.dsa_kernel_backend": "none",
    "comm_overlap": None,
    "optimizer.use_precision_aware_optimizer": False,
    "ddp.overlap_grad_reduce": False,
    "ddp.overlap_param_gather": False,
    "dist.distributed_backend": "gloo",
}
"""What a CPU requires of a ConfigContainer, as platform.cpu does of Megatron's flags."""


def import_bridge() -> None:
    """Import Bridge and its loop; takes seconds. Call it in the fork server, before ranks are forked."""
    absent_packages.install(PLATFORM)
    dataset_helpers.skip_build()
    for name in ("recipes", "training.finetune", "training.gpt_step", "training.pretrain"):
        importlib.import_module(f"megatron.bridge.{name}")
    if PLATFORM == "cpu":
        forget_transformer_engine()
        local_layers.use_for_prediction()
    from megatron_trainer.bridge import blended_samples, packed_lines

    blended_samples.install()
    packed_lines.install()
    for module in (adapter_norms, bucket_sizes, dora_magnitudes, exaone45, falcon_h1, gemma4, glm):
        module.install()
    partial_rotary.install()
    for module in (deepseek_v4, kimi, llama_nemotron, minimax_m3, nemotron_vl, qwen3_omni, step):
        module.install()
    parameter_order.install()


def forget_transformer_engine() -> None:
    """On a CPU: its placeholder looks installed to the modules that try to import it."""
    from megatron.bridge import peft

    for info in pkgutil.iter_modules(peft.__path__):
        module: Any = importlib.import_module(f"{peft.__name__}.{info.name}")
        if hasattr(module, "HAVE_TE"):
            module.HAVE_TE = False
    exaone45.build_locally()
    gated_delta_net.install()
    vision_layers.install()


def make(run: BridgeRun, start: Start | None) -> tuple[Any, StartingWeights | None]:
    """Return the ConfigContainer of a run, and the weights that it starts from, None for random ones.

    `start`: None to check the run before one. Raises RankError with USAGE for a function, a path or a type
    that Bridge does not have, BAD_DATA if the model's folder lacks its configuration, or the data's folder
    its samples.
    """
    if isinstance(folder := run.overrides.get(MODEL_FOLDER), str):
        _answer_from(Path(folder))
    if diffusion.trains(run.function):
        diffusion.install(PLATFORM)
    # Its function trains the text's part alone.
    whole = minimax_m3.whole() if run.overrides.get(IMAGE_TEXT) else contextlib.nullcontext()
    try:
        with whole:
            config = _call(run)
    except OSError as error:
        if is_temporary(error):
            raise
        raise RankError(
            ExitCode.BAD_DATA,
            f"{run.function} reads a model's configuration: {' '.join(str(error).split())[:300]}; set "
            f"{MODEL_FOLDER} to a folder with it",
        ) from error
    vision_layers.follow_config(config.model)
    query_norms.leave_out()
    weights = agreed_weights.of_run(run, start, adapts=config.peft is not None)
    if weights is not None:
        # Functions that pretrain give the model the tokenizer's vocabulary, which its weights may exceed.
        vocabulary.keep(config, weights.base, pretrains=pretrains(run))
    if PLATFORM == "cpu":
        for path, value in ON_CPU.items():
            _set(config, path, value)
        if not diffusion.is_diffusion(config):
            build_locally(config.model, loads_weights=weights is not None)
        config.mixed_precision = "bf16_mixed"
        for leaf in ("main_params", "main_grads", "exp_avg", "exp_avg_sq"):
            setattr(config.optimizer, f"{leaf}_dtype", torch.float32)
    else:
        gpu.adapt_model(config.model)
    # Bridge prefers a function's own to those of `validation`, which a recipe sets.
    for name in ("eval_interval", "eval_iters"):
        if (own := getattr(config.train, name)) is not None:
            setattr(config.validation, name, own)
            setattr(config.train, name, None)
    config.checkpoint.async_save = False
    # Some functions set neither, and a run could not be resumed exactly.
    config.checkpoint.save_optim = config.checkpoint.save_rng = True
    # An edited schedule is followed, as in Megatron's own loop.
    config.scheduler.override_opt_param_scheduler = True
    config.checkpoint.most_recent_k = -1
    config.checkpoint.save = config.checkpoint.load = None
    config.logger.tensorboard_dir = None
    ours = {path: value for path, value in run.overrides.items() if path not in _OURS}
    for path, value in ours.items():
        if not path.startswith("dataset."):
            _set(config, path, value)
    vision_layers.freeze_prediction(config.model)
    if run.overrides.get(IMAGE_TEXT) or run.overrides.get(SOUND_TEXT):
        config.dataset = _image_text(run)
        config.dataset.seed = config.rng.seed
    elif diffusion.is_diffusion(config):
        diffusion.set_dataset(config, fine_tunes="_sft_" in run.function)
    elif run.overrides.get(MOCK_DATA):
        config.dataset = _mock_data()
    config.dataset.seq_length = config.model.seq_length
    if PLATFORM == "cpu" and hasattr(config.dataset, "skip_getting_attention_mask_from_dataset"):
        # Megatron's local attention makes a mask on a GPU where the data have none.
        config.dataset.skip_getting_attention_mask_from_dataset = False
    for path, value in ours.items():
        if path.startswith("dataset."):
            _set(config, path, value)
    if weights is not None:
        config.checkpoint.pretrained_checkpoint = str(weights.base)
    if weights is not None and isinstance(folder, str):
        model_folder.follow(config.model, Path(folder), rows_differ=pretrains(run))
        model_folder.predict(config.model, weights.base)
        if config.peft is not None:
            vocabulary.require_rows_below_adapters(weights.base, run.overrides.get(BASE_OF_EXPORT))
    elif isinstance(folder, str) and run.overrides.get(vocabulary.OF_TOKENIZER) is False:
        # Its export has the configuration of the folder.
        config.model.vocab_size = model_folder.vocabulary(Path(folder))
        model_folder.follow(config.model, Path(folder))
    _size_null_tokenizer(run, config)
    if (chats := run.overrides.get(CHATS)) is not None:
        config.dataset.preprocessing = preprocessing(chats=bool(chats))
    if (packed := run.overrides.get(PACKED_FOLDER)) is not None:
        packing.pack(config, Path(str(packed)))
        packing.check_when_packed(config, packing.max_epochs(run))
    if diffusion.is_diffusion(config):
        diffusion.require_samples(config)
    else:
        _require_samples(config)
    corpus.complete(run, config)
    if run.overrides.get(BLEND):
        from megatron_trainer.bridge import blended_samples

        blended_samples.read_by_weight(config)
    return config, weights


def pretrains(run: BridgeRun) -> bool:
    """Whether a run trains a language model on a corpus, as Bridge's functions of this name do."""
    return "_pretrain_" in run.function and not run.overrides.get(IMAGE_TEXT)


def _size_null_tokenizer(run: BridgeRun, config: Any) -> None:
    """Random tokens are of the model's vocabulary, in which the tokenizer's token for the end is one."""
    chosen = run.overrides.get("tokenizer.tokenizer_type") == NULL_TOKENIZER
    if chosen and "tokenizer.vocab_size" not in run.overrides and config.model.vocab_size:
        config.tokenizer.vocab_size = config.model.vocab_size - 1


def _call(run: BridgeRun) -> Any:
    function, scheme = _function(run.function), run.overrides.get(PEFT_SCHEME)
    return function() if scheme is None else call_with_adapters(function, str(scheme))


def call_with_adapters(function: Callable[..., Any], scheme: str) -> Any:
    """Return what a recipe function returns, with adapters of a scheme.

    Raises RankError with USAGE for a function that trains none.
    """
    if "peft_scheme" in inspect.signature(function).parameters:
        return function(peft_scheme=scheme)
    config = function()
    if config.peft is None:
        name = getattr(function, "__name__", "the function")
        message = f"{PEFT_SCHEME}: {name} trains no adapters; leave it out"
        raise RankError(ExitCode.USAGE, message)
    if type(config.peft).__name__.lower() != scheme:
        # Those of Qwen3.5-VL set LoRA, and take no other.
        from megatron.bridge.recipes.utils.dataset_utils import default_peft_config

        config.peft = default_peft_config(scheme)
    return config


def preprocessing(*, chats: bool) -> Any:
    """What the loss counts of a line: answers of the assistant by the chat template, or `output`."""
    from megatron.bridge.data.sft_processing import (
        ChatSFTPreprocessingConfig,
        PromptCompletionSFTPreprocessingConfig,
    )

    if chats:
        return ChatSFTPreprocessingConfig(loss_mode="assistant")
    return PromptCompletionSFTPreprocessingConfig(
        prompt_column="input", completion_column="output", separator=" "
    )


def _require_samples(config: Any) -> None:
    """Without the file Bridge would only warn, and then train on nothing."""
    root = getattr(config.dataset, "dataset_root", None)
    if root is not None and not (Path(root) / _TRAINING_FILE).is_file():
        raise RankError(ExitCode.BAD_DATA, f"dataset.dataset_root: {root} has no {_TRAINING_FILE}")


def _function(name: str) -> Callable[..., Any]:
    from megatron.bridge import recipes as of_bridge

    function = recipes.FUNCTIONS.get(name) or getattr(of_bridge, name, None)
    if not callable(function):
        raise RankError(ExitCode.USAGE, f"Megatron-Bridge has no recipe function {name}")
    return function


def _answer_from(folder: Path) -> None:
    """Have transformers read the folder for every name of a model, but another folder: no hub is reached.

    Code of the folder is not run, for which some functions ask.
    """
    if not (folder / "config.json").is_file():
        raise RankError(ExitCode.BAD_DATA, f"{MODEL_FOLDER}: {folder} has no config.json")
    import transformers

    inner = transformers.AutoConfig.from_pretrained

    def from_folder(name: object, *args: Any, **kwargs: Any) -> Any:
        source = name if Path(str(name)).is_absolute() else folder
        return inner(str(source), *args, **kwargs | {"trust_remote_code": False})

    transformers.AutoConfig.from_pretrained = from_folder


def _mock_data() -> Any:
    from megatron.bridge.training.config import MockGPTDatasetConfig

    return MockGPTDatasetConfig(
        seq_length=1,
        random_seed=1234,
        reset_attention_mask=False,
        reset_position_ids=False,
        eod_mask_loss=False,
        num_dataset_builder_threads=1,
        data_sharding=True,
        dataloader_type="single",
        num_workers=0,
    )


def _image_text(run: BridgeRun) -> Any:
    from megatron_trainer.bridge.image_text import ImageTextDatasetConfig

    folder = run.overrides.get("tokenizer.tokenizer_model") or run.overrides.get(MODEL_FOLDER)
    return ImageTextDatasetConfig(processor_path=str(folder))


def reads_images(config: Any) -> bool:
    """Whether a run trains on images, or sound, and text."""
    return hasattr(config.dataset, "processor_path")


def _set(config: Any, path: str, value: Value) -> None:
    """Set the field at `path`. Raises RankError with USAGE if there is none, or of another type."""
    *sections, name = path.split(".")
    owner = config
    for section in sections:
        owner = getattr(owner, section, None)
    if owner is None or name not in _fields(owner):
        raise RankError(ExitCode.USAGE, f"{path}: Megatron-Bridge's configuration has no such field")
    present = getattr(owner, name)
    if path == _ACTIVATION and isinstance(value, str):
        setattr(owner, name, _activation(value))
        return
    if isinstance(present, torch.dtype) or callable(present):
        raise RankError(ExitCode.USAGE, f"{path}: {type(present).__name__} cannot be set by an argument")
    # Megatron takes a list of layers or its text.
    text = path == _PIPELINE_LAYOUT and isinstance(value, str)
    if not (text or _fits(present, value)):
        raise RankError(
            ExitCode.USAGE,
            f"{path}: {value!r} is not of the type of {present!r}, which the recipe function sets",
        )
    setattr(owner, name, float(value) if isinstance(present, float) and isinstance(value, int) else value)


def _activation(name: str) -> Any:
    from megatron.bridge.utils.activation_map import str_to_callable

    try:
        return str_to_callable(name)
    except ValueError as error:
        raise RankError(ExitCode.USAGE, f"{_ACTIVATION}: {error}") from error


def _fields(owner: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(owner)} if dataclasses.is_dataclass(owner) else set()


def _fits(present: object, value: Value) -> bool:
    if present is None or value is None:
        return True
    if isinstance(present, bool) or isinstance(value, bool):
        return isinstance(present, bool) and isinstance(value, bool)
    if isinstance(present, float):
        return isinstance(value, int | float)
    if isinstance(present, str | int | list | dict):
        return isinstance(value, type(present))
    return dataclasses.is_dataclass(present) is False
