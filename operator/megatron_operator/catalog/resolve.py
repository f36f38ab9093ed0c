"""catalog entry <- published layout <- recipe, and the platform's defaults: all but the plan."""

from collections.abc import Mapping
from typing import Any, Final

from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.api.platform import AcceleratorProfile, PlatformConfig
from megatron_operator.api.recipe import (
    CheckpointSpec,
    DataSpec,
    MegatronRecipeSpec,
    SchedulingSpec,
    VolumeSpec,
)
from megatron_operator.catalog import bridge_functions, cpu, data, schedule
from megatron_operator.catalog.accelerator import limit_errors, select_accelerator
from megatron_operator.catalog.catalog import LIST_COMMAND, Catalog
from megatron_operator.catalog.entry import Entry
from megatron_operator.catalog.merge import Settings, merge_layers
from megatron_operator.catalog.published_layouts import layout_settings, select_layout
from megatron_operator.catalog.resolved import ResolvedRecipe

_DEFAULTS: Final[Settings] = {"training": {"evalInterval": 1000, "evalIters": 32, "logInterval": 10}}
_SAVE_INTERVAL: Final = 500
_REQUIRED: Final = {
    "model": ("numLayers", "hiddenSize", "numAttentionHeads", "vocabSize"),
    "training": ("seqLength", "lr"),
}


def resolve(
    spec: MegatronRecipeSpec, platform: PlatformConfig, catalog: Catalog, namespace: str | None = None
) -> ResolvedRecipe:
    """Everything about a recipe that can be known without planning.

    Raises InvalidRecipeError with every error: unknown recipe or accelerator, `namespace` limits, missing
    fields.
    """
    errors: list[FieldError] = []
    resolved = resolve_for_planning(spec, platform, catalog, namespace, errors)
    if errors:
        raise InvalidRecipeError(errors)
    return resolved


def resolve_for_planning(
    spec: MegatronRecipeSpec,
    platform: PlatformConfig,
    catalog: Catalog,
    namespace: str | None,
    errors: list[FieldError],
) -> ResolvedRecipe:
    """The same for a recipe that may be wrong: what does not hinder planning is added to `errors`.

    Raises InvalidRecipeError, with these errors too, when nothing can be planned.
    """
    notes: list[str] = []
    entry = _entry(spec, catalog, errors)
    picked = select_accelerator(spec.accelerator, platform)
    if isinstance(picked, FieldError):
        raise InvalidRecipeError([*errors, picked])
    accelerator, profile = picked
    errors += limit_errors(spec.accelerator, accelerator, platform, namespace)
    if entry is None and spec.recipe is not None:
        raise InvalidRecipeError(errors)

    layers: list[tuple[str, Settings]] = [("default", _DEFAULTS)]
    entry_batch = None
    function = layout = None
    if entry is not None:
        label = f"catalog {entry.name}"
        layers.append((label, entry.wire()))
        hardware = profile.known_as(accelerator)
        function = named = catalog.function(spec.recipe or "")
        if entry.engine == "bridge":
            function = bridge_functions.select_function(entry, named, hardware, spec)
            errors += bridge_functions.unsupported_setting_errors(spec, function)
        layout = select_layout(entry, hardware, spec, notes, named)
        if function is not None:
            settings = bridge_functions.function_settings(function, entry, notes)
            layers.append((f"{label}, {function.function}", settings))
            if layout is None and entry.engine == "bridge":
                layers.append((f"{label}, {function.function}", layout_settings(function)))
        if layout is not None:
            layers.append((f"{label}, layout {layout.title}", layout_settings(layout)))
        entry_batch = schedule.largest_batch(merge_layers(layers)[0]["training"])
    layers.append(("recipe", spec.wire()))
    merged, origins = merge_layers(layers)
    model, training = merged["model"], merged["training"]

    if entry is None or entry.engine == "megatron":
        errors += data.complete_data(merged["data"], model, origins, notes)
        errors += _positions(model, training, origins)
    missing = _missing(merged, entry)
    errors += missing
    errors += schedule.resolve_length(training, origins, notes)
    errors += schedule.scale_learning_rate(training, origins, entry_batch, notes)
    if profile.platform == "cpu":
        errors += cpu.adapt_to_cpu(merged, origins, notes)
    if missing:
        raise InvalidRecipeError(errors)
    return ResolvedRecipe.model_validate(
        merged
        | {
            "recipe": entry.name if entry else None,
            "engine": entry.engine if entry else "megatron",
            "mode": entry.modes[0] if entry else "pretrain",
            "function": function,
            "layout": layout,
            "acceleratorType": accelerator,
            "profile": profile,
            "acceleratorCount": spec.accelerator.count,
            "perNode": spec.accelerator.per_node or profile.per_node,
            "data": _data_volume(merged["data"], platform, origins),
            "checkpoint": _checkpoint(spec.checkpoint, platform, origins),
            "recovery": spec.recovery,
            "scheduling": _scheduling(spec.scheduling, profile, platform, origins),
            "image": spec.image or profile.image or platform.image,
            "imagePullSecrets": spec.image_pull_secrets or platform.image_pull_secrets,
            "env": profile.env | (spec.env or {}),
            "origins": {path: origins[path] for path in sorted(origins)},
            "notes": notes,
        }
    )


def _entry(spec: MegatronRecipeSpec, catalog: Catalog, errors: list[FieldError]) -> Entry | None:
    if spec.recipe is None:
        return None
    try:
        entry = catalog.get(spec.recipe)
    except InvalidRecipeError as refused:
        errors += refused.errors
        return None
    return entry


def _missing(merged: Mapping[str, Mapping[str, Any]], entry: Entry | None) -> list[FieldError]:
    fix = "set it" if entry else f"set it, or name a recipe of the catalog (`{LIST_COMMAND}`)"
    errors = [
        FieldError(f"spec.{section}.{leaf}", "is not set", fix)
        for section, leaves in _REQUIRED.items()
        for leaf in leaves
        if leaf not in merged[section] and (section != "model" or entry is None or entry.engine == "megatron")
    ]
    training = merged["training"]
    if schedule.largest_batch(training) is None:
        errors.append(FieldError("spec.training.globalBatchSize", "is not set", fix))
    if not {"trainIters", "trainSamples", "trainTokens"} & training.keys():
        message = "the length of the run is not set (trainTokens, trainIters or trainSamples)"
        errors.append(FieldError("spec.training.trainTokens", message, fix))
    return errors


def _positions(model: dict[str, Any], training: Settings, origins: dict[str, str]) -> list[FieldError]:
    seq_length = training.get("seqLength")
    if seq_length is None:
        return []
    if "maxPositionEmbeddings" not in model:
        model["maxPositionEmbeddings"] = seq_length
        origins["model.maxPositionEmbeddings"] = "training.seqLength"
    longest = model["maxPositionEmbeddings"]
    if seq_length <= longest:
        return []
    message = f"{seq_length} is more than model.maxPositionEmbeddings {longest}"
    fix = f"set seqLength to {longest} or less, or model.maxPositionEmbeddings to {seq_length}"
    return [FieldError("spec.training.seqLength", message, fix)]


def _data_volume(merged: Settings, platform: PlatformConfig, origins: dict[str, str]) -> DataSpec:
    spec = DataSpec.model_validate(merged)
    volume = spec.volume
    if (
        volume is None
        or volume.size is None
        or volume.storage_class_name
        or not platform.data_storage_class_name
    ):
        return spec
    origins["data.volume.storageClassName"] = "platform"
    volume = volume.model_copy(update={"storage_class_name": platform.data_storage_class_name})
    return spec.model_copy(update={"volume": volume})


def _checkpoint(spec: CheckpointSpec, platform: PlatformConfig, origins: dict[str, str]) -> CheckpointSpec:
    defaults, volume = platform.checkpoint, spec.volume
    if volume is None:
        volume = VolumeSpec(size=defaults.size, storage_class_name=defaults.storage_class_name)
        origins["checkpoint.volume"] = "platform"
    elif volume.claim_name is None:
        filled = {
            "size": volume.size or defaults.size,
            "storage_class_name": volume.storage_class_name or defaults.storage_class_name,
        }
        volume = volume.model_copy(update=filled)
    if spec.save_interval is None:
        origins["checkpoint.saveInterval"] = "default"
    return spec.model_copy(update={"volume": volume, "save_interval": spec.save_interval or _SAVE_INTERVAL})


def _scheduling(
    spec: SchedulingSpec, profile: AcceleratorProfile, platform: PlatformConfig, origins: dict[str, str]
) -> SchedulingSpec:
    update: dict[str, Any] = {}
    if spec.queue is None and platform.queue is not None:
        update["queue"] = platform.queue
        origins["scheduling.queue"] = "platform"
    if spec.topology is None and profile.topology:
        update["topology"] = profile.topology
        origins["scheduling.topology"] = "platform"
    return spec.model_copy(update=update)
