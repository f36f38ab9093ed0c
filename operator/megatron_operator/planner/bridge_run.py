"""The run of a Megatron-Bridge function that the operator starts: overrides by path in its ConfigContainer.

`tests/bridge` sets every path in what the installed functions return.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from megatron_contract.bridge_run import (
    BASE_OF_EXPORT,
    BLEND,
    CHATS,
    CORPUS_SEED,
    DATA_PATH,
    IMAGE_TEXT,
    MAX_EPOCHS,
    MOCK_DATA,
    MODEL_FOLDER,
    NULL_TOKENIZER,
    PACKED_FOLDER,
    PEFT_SCHEME,
    SAMPLE_SEED,
    SOUND_TEXT,
    VALIDATION_DATA,
    BridgeRun,
    Value,
)
from megatron_contract.environment import CHECKPOINT_DIR, DATA_DIR
from megatron_contract.time_limits import collective_minutes

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.errors import FieldError
from megatron_operator.api.fine_tuning import ModelPart
from megatron_operator.api.recipe import BlendPart
from megatron_operator.api.status import Plan
from megatron_operator.catalog import bridge_sizes, bridge_support
from megatron_operator.catalog.chats import is_blended
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner.batch import iterations
from megatron_operator.planner.bridge import DECAY_LENGTH, left_out_states, training_overrides
from megatron_operator.planner.estimate.model_shape import model_shape

_OF_PLAN: Final = {
    "tensor_model_parallel_size": "model.tensor_model_parallel_size",
    "pipeline_model_parallel_size": "model.pipeline_model_parallel_size",
    "context_parallel_size": "model.context_parallel_size",
    "sequence_parallel": "model.sequence_parallel",
    "decoder_first_pipeline_num_layers": "model.num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "model.num_layers_in_last_pipeline_stage",
    "account_for_embedding_in_pipeline_split": "model.account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split": "model.account_for_loss_in_pipeline_split",
    "pipeline_model_parallel_layout": "model.pipeline_model_parallel_layout",
    "micro_batch_size": "train.micro_batch_size",
    "global_batch_size": "train.global_batch_size",
}
"""Field of the plan -> path."""
_OF_RECOMPUTATION: Final = {
    "recompute_granularity": "model.recompute_granularity",
    "recompute_method": "model.recompute_method",
    "recompute_num_layers": "model.recompute_num_layers",
}
"""Field of the plan -> path. Pretraining functions keep their own unless it is planned, or the recipe's."""
_OF_OVERLAP: Final = {
    "overlap_grad_reduce": "ddp.overlap_grad_reduce",
    "overlap_param_gather": "ddp.overlap_param_gather",
}
"""Field of the plan -> path. Pretraining functions keep their own."""
_OF_EXPERTS: Final = {
    "expert_model_parallel_size": "model.expert_model_parallel_size",
    "expert_tensor_parallel_size": "model.expert_tensor_parallel_size",
}
"""Field of the plan -> path, for models with experts."""
_OF_TRAINING: Final = {
    "seq_length": "model.seq_length",
    "lr": "optimizer.lr",
    "min_lr": "optimizer.min_lr",
    "lr_warmup_iters": "scheduler.lr_warmup_iters",
    "eval_interval": "validation.eval_interval",
    "eval_iters": "validation.eval_iters",
}
"""Field of `spec.training` -> path; set in every run."""
_OF_PEFT: Final = {
    "dim": "peft.dim",
    "alpha": "peft.alpha",
    "dropout": "peft.dropout",
    "target_modules": "peft.target_modules",
}
_OF_PARTS: Final[dict[ModelPart, str]] = {
    "language": "model.freeze_language_model",
    "vision": "model.freeze_vision_model",
    "projector": "model.freeze_vision_projection",
}
"""Part of a vision-language model -> path of whether it is frozen."""

VOCABULARY_OF_TOKENIZER: Final = "tokenizer.use_tokenizer_vocab_size"
"""Path of whether the vocabulary is the tokenizer's; else it is the model's."""
RESHARDABLE: Final = "checkpoint.dist_ckpt_optim_fully_reshardable"
"""Path of whether checkpoints have the optimizer states for any layout."""
_SEED: Final = 1234
"""Bridge's default for data sets of lines."""
_OF_HUB: Final = (
    "hf_dataset",
    "hf_validation_dataset",
    "hf_validation_proportion",
    "hf_output_root",
    "max_train_samples",
    "offline_packing_specs",
)
"""Fields of `dataset` that belong to a function's own data set, on a hub."""


def bridge_run(resolved: ResolvedRecipe, plan: Plan, name: str) -> BridgeRun:
    """The function and the overrides of a planned run; the recipe `name` saves to /checkpoints/<name>."""
    function = resolved.function
    assert function is not None, "every recipe of engine bridge has a function"
    overrides: dict[str, Value] = {}
    for found in (
        _sizes(resolved, plan),
        _layout(resolved, plan),
        _training(resolved, plan),
        _adapters(resolved),
        _frozen(resolved),
        _checkpoint(resolved, plan, name),
        _data(resolved, name),
    ):
        overrides |= dict(found)
    return BridgeRun(str(function.function), overrides)


def missing_errors(resolved: ResolvedRecipe) -> list[FieldError]:
    """Errors of what the run needs besides a layout: its model's folder, weights and data."""
    if resolved.reads_latents:
        return list(_missing_to_diffuse(resolved))
    if not resolved.fine_tunes:
        return list(_missing_to_pretrain(resolved))
    found = []
    # Weights that are imported are in the model's folder.
    if resolved.init.folder_of_model is None and resolved.init.source is not None:
        found.append(_no_folder(resolved, "the architecture and the tokenizer are read from it"))
    if resolved.init.source is None:
        what = "a projector between random weights" if resolved.mode == "pretrain" else "random weights"
        message = f"is not set: {resolved.recipe} would train {what}"
        fix = "set init.from.huggingFace.path to the folder of a model"
        found.append(FieldError("spec.init.from", message, fix))
    if not resolved.data.mock_data and resolved.data.dataset_root is None:
        fix = "set data.sources, data.datasetRoot, or data.mockData: true for a trial"
        if resolved.media:
            fix = "set data.sources with format: webdataset, or data.mockData: true for a trial"
        found.append(FieldError("spec.data", "no training data is configured", fix))
    return [*found, *_too_long(resolved)]


def _too_long(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    """Sequences in which the model attends otherwise than Megatron-Bridge has it."""
    function = resolved.function
    name = function.function if function is not None else None
    longest = bridge_support.LONGEST_SEQUENCES.get(bridge_support.architecture(name or ""))
    length = resolved.training.seq_length or 0
    if longest is not None and length > longest:
        message = (
            f"{length} is above {longest}: further on the model attends to selected blocks of tokens, and "
            "Megatron-Bridge has it attend to all of them"
        )
        yield FieldError("spec.training.seqLength", message, f"set it to at most {longest}")


def _no_folder(resolved: ResolvedRecipe, why: str) -> FieldError:
    volume = "a volume" if resolved.data.volume else "a volume, set data.volume to it"
    fix = f"copy config.json and the tokenizer to {volume} and name the folder, such as {DATA_DIR}/model"
    return FieldError("spec.init.modelFolder", f"is not set: {why}", fix)


def _missing_to_pretrain(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    """The model's folder, where its function reads one. What data lack: `catalog.data`."""
    if _reads_model_folder(resolved) and resolved.init.folder_of_model is None:
        yield _no_folder(resolved, "the architecture is read from its config.json")


def _missing_to_diffuse(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    """Latents, and what is fine-tuned."""
    if resolved.fine_tunes and resolved.init.source is None:
        message = f"is not set: {resolved.recipe} would train random weights"
        fix = "set init.from.megatron or init.from.recipe: a checkpoint of Megatron-Bridge"
        yield FieldError("spec.init.from", message, fix)
    if not resolved.data.mock_data and resolved.data.dataset_root is None:
        fix = "set data.datasetRoot to a folder of tar files with latents, or data.mockData: true for a trial"
        yield FieldError("spec.data", "no training data is configured", fix)


def _reads_model_folder(resolved: ResolvedRecipe) -> bool:
    function = resolved.function
    return function is not None and bridge_support.reads_model_folder(str(function.function))


def _sizes(resolved: ResolvedRecipe, plan: Plan) -> Iterator[tuple[str, Value]]:
    function, shape = resolved.function, model_shape(resolved.model, Diagnostics())
    if function is not None and shape and bridge_support.leaves_sizes_open(str(function.function)):
        vocabulary = shape.padded_vocab(plan.tensor_model_parallel_size)
        yield from bridge_sizes.overrides(resolved.model, shape.ffn, vocabulary)


def _layout(resolved: ResolvedRecipe, plan: Plan) -> Iterator[tuple[str, Value]]:
    fields = dict(_OF_PLAN)
    if resolved.fine_tunes:
        fields |= _OF_RECOMPUTATION | _OF_OVERLAP
    elif plan.expected is not None or plan.recompute_granularity is not None:
        fields |= _OF_RECOMPUTATION
    # Pretraining functions set both, also of models whose shape the catalog does not have.
    if resolved.model.num_experts or not resolved.fine_tunes:
        fields |= _OF_EXPERTS
    for field, path in fields.items():
        yield path, getattr(plan, field)
    virtual = plan.virtual_pipeline_model_parallel_size
    yield "model.virtual_pipeline_model_parallel_size", virtual if virtual and virtual > 1 else None
    if resolved.replaced_dispatcher is not None:
        yield "model.moe_token_dispatcher_type", "alltoall"
    if plan.recompute_modules:
        yield "model.recompute_modules", list(plan.recompute_modules)
    if plan.context_parallel_size > 1 and resolved.fine_tunes:
        # A rank's part of a sample may have no token of an answer: Bridge requires both then.
        yield "model.calculate_per_token_loss", True
        yield "ddp.average_in_collective", False
    for section in ("ddp", "optimizer"):
        yield f"{section}.use_distributed_optimizer", plan.use_distributed_optimizer


def _training(resolved: ResolvedRecipe, plan: Plan) -> Iterator[tuple[str, Value]]:
    training = resolved.training
    for field, path in _OF_TRAINING.items():
        if (value := getattr(training, field)) is not None:
            yield path, value
    if resolved.function is not None and resolved.function.training.optimizer is not None:
        yield "optimizer.optimizer", training.optimizer
        for name in ("adam_beta1", "adam_beta2", "adam_eps"):
            if (value := getattr(training, name)) is not None:
                yield f"optimizer.{name}", value
    yield from training_overrides(resolved)
    # Functions have that of their own run, which `train_iters` does not change.
    yield DECAY_LENGTH, training.lr_decay_iters
    # The launcher and the hooks follow iterations; a length in samples is converted.
    yield "train.train_iters", plan.train_iters or iterations(training)
    timeout = resolved.recovery.hang_timeout
    if timeout != "off":
        seconds = None if timeout == "auto" else float(timeout.removesuffix("s"))
        yield "dist.distributed_timeout_minutes", collective_minutes(seconds)


def _adapters(resolved: ResolvedRecipe) -> Iterator[tuple[str, Value]]:
    if resolved.peft is None:
        return
    yield PEFT_SCHEME, resolved.peft.type
    for field, path in _OF_PEFT.items():
        yield path, getattr(resolved.peft, field)


def _frozen(resolved: ResolvedRecipe) -> Iterator[tuple[str, Value]]:
    for part, path in _OF_PARTS.items() if resolved.media == "images" and resolved.peft is None else ():
        yield path, part in resolved.frozen


def _checkpoint(resolved: ResolvedRecipe, plan: Plan, name: str) -> Iterator[tuple[str, Value]]:
    yield "checkpoint.save", f"{CHECKPOINT_DIR}/{name}"
    yield "checkpoint.save_interval", resolved.checkpoint.save_interval
    yield from left_out_states(resolved)
    elastic = resolved.recovery.elastic is not None and not resolved.checkpoint.no_save_optim
    if elastic and plan.use_distributed_optimizer:
        yield RESHARDABLE, True
    if resolved.init.source is not None:
        yield "checkpoint.pretrained_checkpoint", resolved.init.source.checkpoint


def _data(resolved: ResolvedRecipe, name: str) -> Iterator[tuple[str, Value]]:
    data, tokenizer, export = resolved.data, resolved.data.tokenizer, resolved.export
    # A function that has the architecture itself is compared with the folder.
    if folder := resolved.init.folder_of_model or (export and export.hugging_face.base):
        yield MODEL_FOLDER, folder
    if export is not None and resolved.init.source is None:
        # Else of the tokenizer, which the model's config.json may exceed.
        yield VOCABULARY_OF_TOKENIZER, False
    if export is not None and _may_lack_rows(resolved):
        yield BASE_OF_EXPORT, resolved.init.base_of_export or export.hugging_face.base
    if tokenizer is not None and (tokenizer.tokenizer_model or tokenizer.tokenizer_type == NULL_TOKENIZER):
        yield "tokenizer.tokenizer_type", tokenizer.tokenizer_type
        yield "tokenizer.tokenizer_model", tokenizer.tokenizer_model
    if data.num_workers is not None:
        yield "dataset.num_workers", data.num_workers
    if resolved.media:
        yield SOUND_TEXT if resolved.media == "sound" else IMAGE_TEXT, True
    yield from _order(resolved)
    if data.mock_data:
        yield MOCK_DATA, True
    elif resolved.reads_latents:
        yield "dataset.dataset_root", f"{DATA_DIR}/{data.dataset_root}"
        yield "dataset.do_validation", resolved.training.eval_iters != 0
    elif not resolved.fine_tunes:
        yield from _corpus(resolved, name)
    elif resolved.media:
        yield "dataset.dataset_root", f"{DATA_DIR}/{data.dataset_root}"
        yield "dataset.do_validation", resolved.training.eval_iters != 0
    elif data.dataset_root is not None:
        yield CHATS, data.examples == "chat"
        if is_blended(source.weight for source in data.sources or ()):
            yield BLEND, True
        if data.packing:
            yield PACKED_FOLDER, f"{CHECKPOINT_DIR}/{name}/packed"
            if (epochs := data.max_epochs or (1 if data.sources else None)) is not None:
                yield MAX_EPOCHS, epochs
        yield from _files(
            f"{DATA_DIR}/{data.dataset_root}", name, evaluates=resolved.training.eval_iters != 0
        )


def _order(resolved: ResolvedRecipe) -> Iterator[tuple[str, Value]]:
    """The seed of the order of samples. Those of media and latents the trainer reads by `rng.seed`."""
    data, seed = resolved.data, resolved.training.seed
    if seed is None and data.packing:
        # Known to the Job that packs; the functions have several.
        seed = _SEED
    if seed is not None and not resolved.media and not resolved.reads_latents:
        is_text = resolved.fine_tunes and not data.mock_data
        yield (SAMPLE_SEED if is_text else CORPUS_SEED), seed


def _may_lack_rows(resolved: ResolvedRecipe) -> bool:
    """Whether the weights of a run may have fewer rows of the vocabulary than config.json names.

    Those of a run with the tokenizer's vocabulary: what pretrains keeps them, also after an edit of `init`,
    and adapters are merged into them. Fine-tuning of all weights adds rows.
    """
    if not resolved.fine_tunes:
        return True
    source = resolved.init.source
    return resolved.peft is not None and source is not None and source.hugging_face is None


def _corpus(resolved: ResolvedRecipe, name: str) -> Iterator[tuple[str, Value]]:
    """Megatron's indexed datasets, as its flag `--data-path` lists them."""
    data = resolved.data
    evaluated = [part for part in data.blend or () if part.validation]
    yield DATA_PATH, _mix([part for part in data.blend or () if not part.validation])
    if evaluated:
        yield VALIDATION_DATA, _mix(evaluated)
    else:
        yield "dataset.split", data.split
    yield "dataset.path_to_cache", f"{CHECKPOINT_DIR}/{name}/data-cache"
    if data.dataloader_type is not None:
        yield "dataset.dataloader_type", data.dataloader_type


def _mix(parts: Sequence[BlendPart]) -> list[Value]:
    words: list[Value] = []
    for part in parts:
        words += [str(part.weight)] if len(parts) > 1 else []
        words.append(f"{DATA_DIR}/{part.path}")
    return words


def _files(root: str, name: str, *, evaluates: bool) -> Iterator[tuple[str, Value]]:
    """A folder of JSON lines instead of the function's data set, which is on a hub.

    Unless PACKED_FOLDER is set, samples are padded instead of packed.
    """
    yield "dataset.dataset_root", root
    for leaf in _OF_HUB:
        yield f"dataset.{leaf}", None
    yield "dataset.enable_offline_packing", False
    yield "dataset.do_validation", evaluates
    yield "dataset.do_test", False
    index = f"{CHECKPOINT_DIR}/{name}/data-cache"
    yield "dataset.dataset_kwargs", {"pad_to_max_length": True, "index_mapping_dir": index}
