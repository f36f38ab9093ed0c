"""`spec.megatronArgs`: Megatron flags without a typed field. Flags that have one are rejected."""

import difflib
import re
from collections.abc import Iterator
from functools import cache
from importlib import resources

from megatron_operator.api.errors import FieldError, field_path, shown
from megatron_operator.api.model import ModelSpec
from megatron_operator.api.other_names import fix_for_name
from megatron_operator.api.text_checks import NEGATIVE_NUMBER
from megatron_operator.api.training import ParallelismSpec, TrainingSpec

Value = str | int | float | bool | list[str | int | float]

_OWNED = {
    "save": "spec.checkpoint.volume",
    "load": "spec.checkpoint.volume",
    "pretrained-checkpoint": "spec.init.from.megatron.path",
    "finetune": "spec.init.from.megatron.path",
    "save-interval": "spec.checkpoint.saveInterval",
    "persistent-save-interval": "spec.checkpoint.saveInterval",
    "no-save-optim": "spec.checkpoint.noSaveOptim",
    "no-save-rng": "spec.checkpoint.noSaveRng",
    "async-save": "spec.checkpoint.asyncSave",
    "use-persistent-ckpt-worker": "spec.checkpoint.asyncSave",
    "data-path": "spec.data.blend",
    "data-cache-path": "spec.data.blend",
    "train-data-path": "spec.data.blend",
    "mock-data": "spec.data.mockData",
    "data-args-path": "spec.data.blend",
    "split": "spec.data.split",
    "valid-data-path": "spec.data.blend[].validation",
    "test-data-path": "spec.data.split",
    "per-split-data-args-path": "spec.data.blend[].validation",
    "dataloader-type": "spec.data.dataloaderType",
    "num-workers": "spec.data.numWorkers",
    "tokenizer-type": "spec.data.tokenizer.tokenizerType",
    "tokenizer-model": "spec.data.tokenizer.tokenizerModel",
    "vocab-file": "spec.data.tokenizer.vocabFile",
    "merge-file": "spec.data.tokenizer.mergeFile",
    "padded-vocab-size": "spec.model.vocabSize",
    "group-query-attention": "spec.model.numQueryGroups",
    "encoder-num-layers": "spec.model.numLayers",
    "encoder-seq-length": "spec.training.seqLength",
    "num-layers-per-virtual-pipeline-stage": "spec.parallelism.numVirtualStagesPerPipelineRank",
    "recompute-activations": "spec.parallelism.recomputeGranularity",
    "dist-ckpt-optim-fully-reshardable": "spec.recovery.elastic",
    "tensorboard-dir": "spec.tracking.tensorboard",
    "wandb-project": "spec.tracking.wandb.project",
    "wandb-entity": "spec.tracking.wandb.entity",
    "wandb-exp-name": "spec.tracking.wandb.name",
}
_RESERVED = frozenset(
    {
        "ckpt-step",
        "distributed-backend",
        "exit-duration-in-mins",
        "exit-interval",
        "exit-on-missing-checkpoint",
        "exit-signal",
        "exit-signal-handler",
        "local-rank",
        "override-opt-param-scheduler",
        "override-opt_param-scheduler",
        "use-checkpoint-opt-param-scheduler",
        "use-checkpoint-opt_param-scheduler",
    }
)
_REFUSED = {
    "ckpt-format": "is torch_dist (fsdp_dtensor with parallelism.useMegatronFsdp): formats that load in "
    "another layout",
    "skip-train": "trains nothing, and the run would be reported complete",
    "tensorboard-queue-size": "is for a writer of Megatron that the trainer replaces (spec.tracking)",
    "wandb-save-dir": "is wandb beside the checkpoints for every run (spec.tracking.wandb)",
    "multiple-validation-sets": (
        "reports the loss of each set apart, and status and best checkpoint know one: entries of"
        " data.blend and data.sources with validation are mixed by their weights"
    ),
    "adlr-autoresume": "requires a package that is not public",
    "ckpt-convert-format": "makes Megatron convert a checkpoint and end, and the run would be complete",
    "fsdp-manual-registration": "is for Megatron FSDP with NCCL's user buffers, which was not run",
    "inference-cuda-graph-scope": "is for inference",
    "inference-disable-triton-nvls-kernels": "is for inference",
    "inference-fuse-tp-communication": "is for inference",
    "init-method-xavier-uniform": "ends Megatron Core 0.19.2 with a TypeError (scaled_init_method)",
    "overlap-param-gather-with-optimizer-step": "is not supported by Megatron with torch_dist checkpoints",
    "yaml-cfg": "replaces all of the settings that the operator writes",
}
"""Flag -> why it is not taken."""
_LACKS_PACKAGE = {
    "batch-invariant-mode": "requires FlashAttention, which the trainer image lacks",
    "defer-embedding-wgrad-compute": "requires Apex, which the trainer image lacks",
    "enable-msc": "requires the package multi-storage-client, which the trainer image lacks",
    "replication": "is for Megatron's local checkpoints, whose package the trainer image lacks",
    "use-nccl-ub": "makes Megatron compile an allocator for NCCL when it starts, and the trainer image has"
    " neither ninja nor CUDA's headers",
}
"""The same for the project's image alone."""
_REMOVED = {
    "checkpoint-activations": "set spec.parallelism.recomputeGranularity",
    "model-parallel-size": "set spec.parallelism.tensorModelParallelSize",
    "warmup": "set spec.training.lrWarmupFraction",
}
"""Flags that the parser still knows, to refuse them."""
_UNUSABLE_VALUES = {
    ("cross-entropy-fusion-impl", "te"): ("is disabled in Megatron for its instability", "set native"),
    ("non-persistent-ckpt-type", "in_memory"): ("is not implemented in Megatron", "set global"),
}
"""Choices of the parser that Megatron refuses later: message and fix."""
_VALUES_LACK_PACKAGE = {
    ("non-persistent-ckpt-type", "local"): (
        "requires the package nvidia-resiliency-ext, which the trainer image lacks",
        "set global",
    ),
}
"""The same with the project's image alone."""
_IGNORED = {
    "rampup-batch-size": "set spec.training.stepBatchSizeSchedule",
    "use-mcore-models": "leave it out",
    "use-flash-attn": "leave it out: training.attentionBackend is auto",
    "use-rotary-position-embeddings": "set spec.model.positionEmbeddingType: rope",
    "use-dist-ckpt": "leave it out",
    "dist-ckpt-format": "leave it out",
    "ckpt-fully-parallel-save": "leave it out",
}
_UNREAD = {
    "loop": ("is read by nothing in Megatron's training loop", "leave it out"),
    "rl": ("requires the package megatron.rl, which the trainer image does not have", "leave it out"),
    "sft": (
        "is read by Megatron's pretrain_gpt.py alone, which the trainer replaces",
        "leave it out; recipes of mode sft (megatron recipes list) fine-tune",
    ),
}
"""Message and fix for each kind of `data/unread_flags.txt`."""


def _typed_fields() -> Iterator[tuple[str, str]]:
    for section, model in (
        ("model", ModelSpec),
        ("training", TrainingSpec),
        ("parallelism", ParallelismSpec),
    ):
        for name, info in model.model_fields.items():
            yield name.replace("_", "-"), f"spec.{section}.{info.alias}"


TYPED = dict(_typed_fields()) | _OWNED
"""Flag -> the field that sets it."""


def passthrough_errors(args: dict[str, Value], *, own_image: bool = False) -> list[FieldError]:
    """Errors for flags that a field sets, that the operator reserves, or that are invalid.

    An image other than the project's (`own_image`) is not known to lack a package.
    """
    unusable = _UNUSABLE_VALUES if own_image else _UNUSABLE_VALUES | _VALUES_LACK_PACKAGE
    errors = []
    for flag, value in args.items():
        field = field_path("spec.megatronArgs", flag)
        if flag.startswith("-"):
            errors.append(FieldError(field, "is written with dashes", f"write {flag.lstrip('-')}"))
        elif (spelled := _as_megatron_spells(flag)) != flag:
            errors.append(_misspelled_error(field, spelled))
        elif not_taken := why_not_taken(flag, own_image=own_image):
            errors.append(FieldError(field, *not_taken))
        elif (flag, str(value)) in unusable:
            message, fix = unusable[flag, str(value)]
            errors.append(FieldError(field, f"{value} {message}", fix))
        elif reason := _invalid(flag, value):
            errors.append(FieldError(field, *reason))
    return errors


def why_not_taken(flag: str, *, own_image: bool = False) -> tuple[str, str] | None:
    """Message and fix for a flag that spec.megatronArgs takes with no value; none for any other."""
    refused = _REFUSED if own_image else _REFUSED | _LACKS_PACKAGE
    if flag in _RESERVED:
        return "is reserved for the operator", "leave it out"
    if flag in refused:
        return refused[flag], "leave it out"
    if flag in _REMOVED:
        return "was removed from Megatron", _REMOVED[flag]
    if flag in _IGNORED:
        return "is accepted and ignored by Megatron", _IGNORED[flag]
    if flag in TYPED:
        return f"is set by {TYPED[flag]}", f"set {TYPED[flag]} instead"
    return _UNREAD[unread_flags()[flag]] if flag in unread_flags() else None


def _as_megatron_spells(flag: str) -> str:
    """A flag in camelCase or with underscores as Megatron spells it; any other flag unchanged."""
    if flag in megatron_flags():
        return flag
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", flag).replace("_", "-").lower()


def _misspelled_error(field: str, flag: str) -> FieldError:
    if flag in TYPED:
        return FieldError(field, f"is set by {TYPED[flag]}", "set that instead")
    if flag in _RESERVED:
        return FieldError(field, "is reserved for the operator", "leave it out")
    if flag in megatron_flags():
        return FieldError(field, "is not spelled as Megatron spells it", f"write {flag}")
    return FieldError(field, *_unknown(flag))


@cache
def megatron_flags() -> dict[str, str]:
    """Every flag of the pinned Megatron release -> `switch`, `value` or `values`."""
    return _listed("megatron_flags.txt")


@cache
def _value_types() -> dict[str, str]:
    """Flags whose values Megatron's parser checks -> `int`, `float`, or the choices with | between them."""
    return _listed("flag_values.txt")


@cache
def unread_flags() -> dict[str, str]:
    """Flags that the parser accepts and the training loop does not read -> kind of the reason."""
    return _listed("unread_flags.txt")


def _listed(name: str) -> dict[str, str]:
    text = resources.files("megatron_operator.planner").joinpath(f"data/{name}").read_text()
    return dict(line.split() for line in text.splitlines())


def _invalid(flag: str, value: Value) -> tuple[str, str] | None:
    """Message and fix for a flag that Megatron's own parser would reject; none for a valid one."""
    known = megatron_flags()
    match known.get(flag):
        case None:
            return _unknown(flag)
        case "switch" if not isinstance(value, bool):
            return f"is a switch and takes no value, but is {shown(value)}", "set true, or leave it out"
        case "value" if isinstance(value, bool | list):
            return f"takes one value, but is {str(value).lower():.80}", "give one value"
        case "values" if isinstance(value, bool):
            return f"takes values, but is {str(value).lower()}", "give a list of values"
    if value in ("", []):
        return "is empty", "give a value, or leave it out"
    items = value if isinstance(value, list) else [value]
    for item in items:
        if reason := _wrong_type(_value_types().get(flag), str(item)):
            return reason
    for item in value if isinstance(value, list) else ():
        if str(item).startswith("-") and not _is_number(str(item)):
            return f"{shown(item)} begins with a dash, so Megatron would read it as a flag", "remove it"
    return None


def _wrong_type(expected: str | None, text: str) -> tuple[str, str] | None:
    """Message and fix for a value that argparse cannot convert, or that is none of the choices."""
    if expected in ("int", "float"):
        try:
            (int if expected == "int" else float)(text)
        except ValueError:
            number = "a whole number" if expected == "int" else "a number"
            return f"takes {number}, but is {shown(text)}", f"give {number}"
    elif expected is not None and text not in expected.split("|"):
        choices = ", ".join(expected.split("|"))
        return f"{shown(text)} is none of its values", f"give one of {choices}"
    return None


def _unknown(flag: str) -> tuple[str, str]:
    if today := fix_for_name(flag):
        return "unknown flag of Megatron", today
    near = difflib.get_close_matches(flag, megatron_flags(), n=1)
    return "unknown flag of Megatron", f"set {near[0]}" if near else "leave it out"


def passthrough_arguments(args: dict[str, Value]) -> list[str]:
    """The flags as arguments, in alphabetical order.

    True is a switch without a value, false is omitted, a list becomes several values.
    """
    words = []
    for flag, value in sorted(args.items()):
        if value is False:
            continue
        words.append(f"--{flag}")
        if isinstance(value, list):
            words += [str(item) for item in value]
        elif value is not True:
            words[-1:] = flag_and_value(words[-1], str(value))
    return words


def flag_and_value(flag: str, value: str) -> list[str]:
    """A flag with its value: one word where argparse would take the value for another flag (`-1,0`)."""
    return [f"{flag}={value}"] if value.startswith("-") and not _is_number(value) else [flag, value]


def _is_number(text: str) -> bool:
    """Whether argparse takes a word with a dash in front for a negative number."""
    return NEGATIVE_NUMBER.fullmatch(text) is not None
