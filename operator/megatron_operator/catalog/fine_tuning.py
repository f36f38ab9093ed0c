"""Recipes that fine-tune by Megatron-Bridge: what they take, and what follows from it.

What recipes of mode `pretrain` take: `catalog.bridge_pretraining`.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from megatron_contract.environment import CHECKPOINT_DIR, DATA_DIR

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.errors import FieldError, shown
from megatron_operator.api.fine_tuning import (
    LATENT_MODULES,
    STATE_SPACE_MODULES,
    TARGET_MODULES,
    InitSpec,
    PeftSpec,
    TargetModule,
)
from megatron_operator.api.model import ModelSpec
from megatron_operator.api.platform import AcceleratorProfile
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.catalog import bridge_pretraining, chats, latents
from megatron_operator.catalog.architecture import Architecture
from megatron_operator.catalog.bridge_pretraining import TOKENIZER
from megatron_operator.catalog.bridge_support import Media
from megatron_operator.catalog.data import set_split
from megatron_operator.catalog.entry import Entry, PublishedLayout

DEFAULT_DROPOUT: Final = 0.0
"""Share of an adapter's inputs that dropout sets to zero."""
_DATA: Final = frozenset(
    {"volume", "mockData", "datasetRoot", "examples", "packing", "numWorkers", "tokenizer"}
)
_DATA_OF_SOURCES: Final = _DATA | {"sources", "prepare", "split", "maxEpochs"}
_DATA_OF_SAMPLES: Final = _DATA_OF_SOURCES - {"datasetRoot", "examples", "packing"}
_ONLY_BRIDGE: Final = "only recipes of engine bridge take it"
_LEAVE: Final = "leave it out"
_TOKENIZER_MODEL: Final = "data.tokenizer.tokenizerModel"


def refused_settings(spec: MegatronRecipeSpec, entry: Entry | None) -> Iterator[FieldError]:
    """Errors of settings that the engine of a recipe does not take.

    `training` and `parallelism` of engine `bridge`: `bridge_functions.unsupported_setting_errors`.
    """
    if entry is not None and entry.engine == "bridge":
        if entry.starts:
            yield from _not_taken_by_bridge(spec, splits=entry.splits_sequences)
            yield from _sequence_errors(spec, entry)
            if entry.reads_latents:
                yield from latents.refused_settings(spec, entry)
            elif not entry.fine_tunes:
                yield from bridge_pretraining.refused_settings(spec, entry)
            else:
                yield from _data_errors(spec, media=entry.media)
            if spec.peft is not None and entry.modes[0] != "lora":
                what = "the projector" if entry.aligns_projector else "all weights"
                message = f"{entry.name} trains {what} (mode {entry.modes[0]})"
                yield FieldError("spec.peft", message, "leave it out, or choose a recipe of mode lora")
            elif spec.peft is not None:
                yield from _target_errors(spec.peft, entry)
        return
    data_root = spec.data is not None and spec.data.dataset_root is not None
    examples = spec.data is not None and spec.data.examples is not None
    fields = {
        "init.modelFolder": spec.init and spec.init.model_folder,
        "peft": spec.peft,
        "data.datasetRoot": data_root,
        "data.examples": examples,
        "data.packing": spec.data is not None and spec.data.packing,
    }
    for field, value in fields.items():
        if value:
            fix = "leave it out, or choose a recipe of mode sft or lora (megatron recipes list)"
            yield FieldError(f"spec.{field}", f"has no effect on Megatron Core's loop: {_ONLY_BRIDGE}", fix)


def _target_errors(peft: PeftSpec, entry: Entry) -> Iterator[FieldError]:
    known = target_modules(entry)
    for name in peft.target_modules or ():
        if name not in known:
            experts = name in ("linear_fc1", "linear_fc2")
            reason = f"{name} of {entry.name} is the experts', whose adapters are not planned"
            message = reason if experts else f"{entry.name} has no {name}"
            fix = f"set {', '.join(known)}, or one of these"
            yield FieldError("spec.peft.targetModules", message, fix)


def target_modules(entry: Entry) -> tuple[TargetModule, ...]:
    """The linear layers of an entry's model that adapters are planned for."""
    model = entry.model
    queries: tuple[TargetModule, ...] = ("linear_q_proj",)
    if not model.multi_latent_attention:
        transformer = TARGET_MODULES[:2] if model.num_experts else TARGET_MODULES
        return (*transformer, *(STATE_SPACE_MODULES if "M" in (model.hybrid_layer_pattern or "") else ()))
    if model.q_lora_rank is not None:
        queries = ("linear_q_down_proj", "linear_q_up_proj")
    return (*queries, *LATENT_MODULES, *(() if model.num_experts else TARGET_MODULES[2:]))


def _data_errors(spec: MegatronRecipeSpec, *, media: Media) -> Iterator[FieldError]:
    data: dict[str, Any] = spec.data.wire() if spec.data else {}
    has_sources = bool(data.get("sources"))
    taken = _DATA_OF_SAMPLES if media else _taken(data)
    fix = "set data.sources with format: chat, data.datasetRoot, or data.mockData: true"
    for leaf in sorted(data.keys() - taken):
        if leaf == "check":
            checked = "with data.sources, which are checked when they are prepared"
            why = checked if has_sources else "without data.datasetRoot"
            yield FieldError("spec.data.check", f"has no effect {why}", _LEAVE)
            continue
        if leaf == "maxEpochs" and not media:
            message = "has no effect without data.sources or data.datasetRoot"
            yield FieldError(f"spec.data.{leaf}", message, _LEAVE)
            continue
        if leaf in _DATA_OF_SOURCES - _DATA:
            leave = "leave it out, or set data.sources with format: chat"
            yield FieldError(f"spec.data.{leaf}", "has no effect without data.sources", leave)
            continue
        fix = "set data.sources with format: webdataset, or data.mockData: true" if media else fix
        yield FieldError(f"spec.data.{leaf}", "is not passed to Megatron-Bridge", fix)
    if has_sources:
        evaluates = spec.training is None or spec.training.eval_iters != 0
        folder = _tokenizer_folder(spec)
        yield from chats.chat_errors(data, *folder, media=media, evaluates=evaluates)


def _taken(data: Mapping[str, Any]) -> frozenset[str]:
    """Fields of `data` that a recipe reads which fine-tunes on text."""
    if data.get("sources"):
        return _DATA_OF_SOURCES
    return _DATA | {"maxEpochs", "check"} if "datasetRoot" in data else _DATA


def _sequence_errors(spec: MegatronRecipeSpec, entry: Entry) -> Iterator[FieldError]:
    asked = spec.parallelism is not None and spec.parallelism.sequence_parallel
    if asked and not entry.has_sequence_parallelism:
        message = f"true, which the model of {entry.name} in Megatron-Bridge does not have"
        yield FieldError("spec.parallelism.sequenceParallel", message, "set false, or leave it out")


def _not_taken_by_bridge(spec: MegatronRecipeSpec, *, splits: bool) -> Iterator[FieldError]:
    """Errors of what no function takes that the operator starts.

    `splits`: this one may split sequences over ranks.
    """
    tokenizer = spec.data.tokenizer.wire() if spec.data and spec.data.tokenizer else {}
    yield from _tokenizer_errors(tokenizer)
    training, sizes = spec.training, spec.parallelism
    if training is not None and training.bf16 is False:
        message = "false is not passed to Megatron-Bridge: the functions that are started train in BF16"
        yield FieldError("spec.training.bf16", message, _LEAVE)
    cp = sizes.context_parallel_size if sizes else None
    if cp is not None and cp > 1 and not splits:
        message = f"{cp} is not passed to Megatron-Bridge: its samples are not split over ranks here"
        yield FieldError("spec.parallelism.contextParallelSize", message, "set 1, or leave it out")
    if cp is not None and cp > 1 and splits and spec.data is not None and spec.data.packing:
        message = f"{cp} with data.packing: the parts of a packed sequence are not padded to be split"
        yield FieldError("spec.parallelism.contextParallelSize", message, "set 1, or packing: false")
    if spec.checkpoint.async_save:
        message = "true is not passed to Megatron-Bridge: the writer that it starts is not supervised"
        yield FieldError("spec.checkpoint.asyncSave", message, _LEAVE)
    if spec.checkpoint.local is not None:
        message = "is not passed to Megatron-Bridge: its local checkpoints cannot be verified"
        yield FieldError("spec.checkpoint.local", message, _LEAVE)


def _tokenizer_errors(tokenizer: dict[str, Any]) -> Iterator[FieldError]:
    kind = tokenizer.get("tokenizerType")
    if kind not in (None, TOKENIZER):
        message = f"{kind} is not passed to Megatron-Bridge"
        yield FieldError("spec.data.tokenizer.tokenizerType", message, f"set {TOKENIZER}, or leave it out")
    for leaf in sorted({"vocabFile", "mergeFile"} & tokenizer.keys()):
        yield FieldError(f"spec.data.tokenizer.{leaf}", "is not passed to Megatron-Bridge", _LEAVE)


def complete_data(
    merged: Mapping[str, dict[str, Any]], spec: MegatronRecipeSpec, found: Diagnostics, *, media: Media
) -> None:
    """Complete `data`: the model's tokenizer unless the recipe names another, the folder of what is prepared.

    What is not read is removed. `media`: the recipe reads samples with it instead of chats.
    """
    data = merged["data"]
    has_sources = bool(data.get("sources"))
    for leaf in data.keys() - _taken(data):
        data.pop(leaf)
        found.origins.pop(f"data.{leaf}", None)
    folder, field = _tokenizer_folder(spec)
    if field != _TOKENIZER_MODEL:
        data["tokenizer"] = {"tokenizerType": TOKENIZER} | ({"tokenizerModel": folder} if folder else {})
        found.origins["data.tokenizer"] = field
    else:
        data["tokenizer"] = {"tokenizerType": TOKENIZER} | data["tokenizer"]
    if not has_sources:
        return
    set_split(data, found)
    length = merged["training"].get("seqLength")
    data["datasetRoot"] = chats.chat_root(data, folder, length, media=media)
    found.origins["data.datasetRoot"] = "data.sources"
    if not media:
        data["examples"] = "chat"
        found.origins["data.examples"] = "data.sources"


def _tokenizer_folder(spec: MegatronRecipeSpec) -> tuple[str | None, str]:
    """The tokenizer's folder, and the field that names it."""
    if spec.data and spec.data.tokenizer and spec.data.tokenizer.tokenizer_model:
        return spec.data.tokenizer.tokenizer_model, _TOKENIZER_MODEL
    init = spec.init or InitSpec()
    return init.folder_of_model, init.field_of_model


def adapters(
    spec: MegatronRecipeSpec, entry: Entry, function: PublishedLayout | None, found: Diagnostics
) -> PeftSpec | None:
    """The adapters of a recipe of mode `lora` that the operator starts, complete; None for any other."""
    if not entry.starts or entry.modes[0] != "lora" or function is None:
        return None
    asked = spec.peft or PeftSpec()
    known = target_modules(entry)
    targets = [name for name in function.lora_targets or known if name in known]
    own = {
        "type": "lora",
        "dim": function.lora_rank,
        "alpha": function.lora_alpha,
        "dropout": DEFAULT_DROPOUT,
        "targetModules": list(targets),
    }
    for name in own:
        found.origins[f"peft.{name}"] = "recipe" if name in asked.wire() else f"catalog {entry.name}"
    complete = PeftSpec.model_validate(own | asked.wire())
    _refuse_dora(complete, entry, found)
    if spec.recovery.elastic is not None and fixes_tensor_parallelism(complete, entry.model):
        message = "is set, and Megatron-Bridge does not load DoRA of linear_fc1 at another TP"
        found.error("spec.recovery.elastic", message, "leave it out, or linear_fc1 of peft.targetModules")
    return complete


def fixes_tensor_parallelism(peft: PeftSpec, model: ModelSpec) -> bool:
    """Whether checkpoints of adapters load at the same TP alone.

    Bridge 0.6.2 saves magnitudes of DoRA in a gated `linear_fc1` in the order of the ranks, and its rows
    elsewhere in that of gate and up (`ParallelLinearDoRAAdapter.sharded_state_dict`).
    """
    return peft.type == "dora" and not model.squared_relu and "linear_fc1" in (peft.target_modules or ())


def _refuse_dora(peft: PeftSpec, entry: Entry, found: Diagnostics) -> None:
    """Refuse DoRA on the layers that Megatron-Bridge cannot train with it.

    Sparse attention multiplies queries by the weight of `linear_kv_up_proj` (`AbsorbedMLASelfAttention`). A
    layer with LoRA has a weight that includes the adapter (`LoRALinear.weight`), one with DoRA has none.
    """
    of_sparse_attention = "has no weight that its sparse attention can read"
    reasons = {"in_proj": "cannot be saved by Megatron-Bridge"} | (
        {"linear_kv_up_proj": of_sparse_attention} if entry.model.dsa_indexer_topk else {}
    )
    for name in peft.target_modules or () if peft.type == "dora" else ():
        if name in reasons:
            others = ", ".join(x for x in target_modules(entry) if x != name)
            message = f"DoRA on {name} of {entry.name} {reasons[name]}"
            found.error("spec.peft.targetModules", message, f"set {others}, or type lora")


def _not_apart_on_cpus(model: Architecture) -> str:
    """The layers of a model that take packed samples on GPUs alone; empty if there are none.

    Attention of all other layers is `megatron_trainer.bridge.packed_attention` on CPUs.
    """
    kinds = {
        "state-space layers": "M" in (model.hybrid_layer_pattern or ""),
        "gated delta nets": model.linear_attention_freq is not None,
        "indexers of sparse attention": model.dsa_indexer_topk is not None,
    }
    return next((kind for kind, has in kinds.items() if has), "")


def packing_errors(
    spec: MegatronRecipeSpec, entry: Entry | None, profile: AcceleratorProfile
) -> Iterator[FieldError]:
    """Errors of packed samples where nothing keeps them apart, or that have weights.

    A recipe that does not fine-tune takes no packing: `refused_settings`.
    """
    if spec.data is None or not spec.data.packing or entry is None or not entry.fine_tunes:
        return
    if entry.model.csa_compress_ratios is not None:
        message = "true, but attention with csaCompressRatios does not keep packed samples apart"
        yield FieldError("spec.data.packing", message, _LEAVE)
    elif profile.platform == "cpu" and (layers := _not_apart_on_cpus(entry.model)):
        message = f"true, but on CPUs the {layers} of {entry.name} do not keep packed samples apart"
        yield FieldError("spec.data.packing", message, _LEAVE)
    for number, source in enumerate(spec.data.sources or ()):
        if source.weight != 1.0:
            at = f"spec.data.sources[{number}].weight"
            message = f"{source.weight:g} with data.packing: an epoch has every packed sequence once"
            yield FieldError(at, message, "leave it out, or set packing: false")
    micro = spec.training.micro_batch_size if spec.training else None
    if micro is not None and micro > 1:
        message = f"{micro} packed sequences of a micro batch are not read by Megatron-Bridge"
        yield FieldError("spec.training.microBatchSize", message, "set 1, or leave it out")


def path_errors(
    spec: MegatronRecipeSpec, entry: Entry | None, profile: AcceleratorProfile
) -> Iterator[FieldError]:
    """Errors of folders outside of every volume that the pods mount.

    The tokenizer of Megatron Core's loop may be a name on a hub, or a folder of the image.
    """
    by_bridge = entry is not None and entry.engine == "bridge"
    if by_bridge and entry is not None and not entry.starts:
        return
    mounted = [CHECKPOINT_DIR, *(mount.mount_path for mount in profile.pod_template.volume_mounts)]
    if spec.data is not None and spec.data.volume is not None:
        mounted.append(DATA_DIR)
    for field, path in [*_weights_path(spec), *(_model_paths(spec) if by_bridge else ())]:
        if not _is_below(path, mounted):
            message = f"{shown(path)} is on no volume of the pods, which mount {', '.join(sorted(mounted))}"
            fix = f"name a folder below one of them; data.volume is mounted at {DATA_DIR}"
            yield FieldError(field, message, fix)


def _weights_path(spec: MegatronRecipeSpec) -> Iterator[tuple[str, str]]:
    if spec.init is not None and spec.init.source is not None and spec.init.source.megatron is not None:
        yield "spec.init.from.megatron.path", spec.init.source.megatron.path


def _model_paths(spec: MegatronRecipeSpec) -> Iterator[tuple[str, str]]:
    if spec.init is not None and spec.init.model_folder is not None:
        yield "spec.init.modelFolder", spec.init.model_folder
    tokenizer = spec.data.tokenizer if spec.data else None
    if tokenizer is not None and tokenizer.tokenizer_model is not None:
        yield "spec.data.tokenizer.tokenizerModel", tokenizer.tokenizer_model


def _is_below(path: str, folders: Iterable[str]) -> bool:
    parents = {PurePosixPath(path), *PurePosixPath(path).parents}
    return any(PurePosixPath(folder) in parents for folder in folders)
