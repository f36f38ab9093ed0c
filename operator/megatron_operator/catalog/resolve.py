"""Resolves a recipe: catalog entry, published layout, recipe and platform defaults, before planning."""

import functools
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.errors import FieldError, InvalidRecipeError, field_path, shown
from megatron_operator.api.fine_tuning import InitSpec
from megatron_operator.api.platform import AcceleratorProfile, PlatformConfig
from megatron_operator.api.platform_validation import beyond_baseline
from megatron_operator.api.recipe import CheckpointSpec, DataSpec, MegatronRecipeSpec, VolumeSpec
from megatron_operator.catalog import (
    best_checkpoint,
    bridge_pretraining,
    conversions,
    cpu,
    data,
    dispatcher,
    fine_tuning,
    frozen,
    full_sharding,
    gradients,
    hub,
    latents,
    overlaps,
    performance_options,
    positions,
    schedule,
    scheduling,
    weight_gradients,
)
from megatron_operator.catalog.accelerator import (
    limit_errors,
    queue_errors,
    select_accelerator,
    service_account_errors,
)
from megatron_operator.catalog.catalog import LIST_COMMAND, Catalog
from megatron_operator.catalog.entry import Entry
from megatron_operator.catalog.layers import DEFAULTS, CatalogLayers, catalog_layers
from megatron_operator.catalog.merge import Settings, merge_layers
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.catalog.sources import with_formats
from megatron_operator.catalog.validation_sets import validation_set_errors

_SAVE_INTERVAL: Final = 500
_SYNCHRONOUS_UP_TO: Final = 64
"""GPUs up to which a run waits for its checkpoints unless asyncSave is set."""
_REQUIRED: Final = {
    "model": ("numLayers", "hiddenSize", "numAttentionHeads", "vocabSize"),
    "training": ("seqLength", "lr"),
}


def resolve(
    spec: MegatronRecipeSpec, platform: PlatformConfig, catalog: Catalog, namespace: str | None = None
) -> ResolvedRecipe:
    """Resolve everything that does not depend on planning.

    Raises InvalidRecipeError with every error: unknown recipe or accelerator, `namespace` limits, missing
    fields.
    """
    found = Diagnostics()
    resolved = resolve_for_planning(spec, platform, catalog, namespace, found)
    found.raise_errors()
    return resolved


def resolve_for_planning(
    spec: MegatronRecipeSpec,
    platform: PlatformConfig,
    catalog: Catalog,
    namespace: str | None,
    found: Diagnostics,
) -> ResolvedRecipe:
    """Like `resolve`, but errors that do not prevent planning are added to `found` instead of raised.

    Raises InvalidRecipeError, with all errors, when planning is not possible.
    """
    entry = _entry(spec, catalog, found)
    is_unknown = entry is None and spec.recipe is not None
    spec, unknown_formats = with_formats(
        spec,
        fine_tunes=entry is not None and entry.fine_tunes,
        media=entry.media if entry else "",
    )
    # An unknown recipe leaves open what its sources are for.
    if unknown_formats and not is_unknown:
        raise InvalidRecipeError([*found.errors, *unknown_formats])
    found.extend(hub.not_opened_errors(spec, platform))
    spec = data.without_stored_defaults(hub.with_folder(spec))
    picked = select_accelerator(spec.accelerator, platform)
    if isinstance(picked, FieldError):
        raise InvalidRecipeError([*found.errors, picked])
    accelerator, profile = picked
    entry = entry and entry.on(profile)
    found.extend(limit_errors(spec.accelerator, accelerator, platform, namespace))
    found.extend(service_account_errors(spec.service_account_name, platform))
    found.extend(queue_errors(spec.scheduling.queue, platform))
    found.extend(_repeated_variables(spec))
    tuned = catalog.tuned(entry.family) if entry is not None else []
    found.extend(fine_tuning.refused_settings(spec, entry))
    found.extend(frozen.refused_settings(spec, entry))
    if is_unknown:
        raise InvalidRecipeError(found.errors)

    published = CatalogLayers([("default", DEFAULTS)])
    if entry is not None:
        published = catalog_layers(entry, spec, catalog, profile, accelerator, found)
    merged = _merged(spec, entry, published, profile, accelerator, found)
    if entry is None or entry.converts:
        found.extend(conversions.conversion_errors(spec, entry, tuned))
    found.extend(fine_tuning.path_errors(spec, entry, profile))
    found.extend(fine_tuning.packing_errors(spec, entry, profile))
    if spec.init is not None and spec.init.source is not None and spec.init.source.recipe is not None:
        found.note(f"waits until recipe {spec.init.source.recipe} has succeeded, and starts from its weights")
    if beyond := beyond_baseline(profile):
        found.note(
            f"pods of profile {accelerator} have {', '.join(beyond)}: "
            "the namespace must allow the Pod Security level privileged"
        )
    checkpoint = _checkpoint(spec, entry, profile, platform, found)
    save = checkpoint.save_interval or _SAVE_INTERVAL
    best_checkpoint.complete_evaluations(spec.checkpoint, spec.export, merged["training"], save, found)
    found.extend(best_checkpoint.best_checkpoint_errors(spec.checkpoint, spec.export, merged, save))
    settings = merged | {
        "recipe": entry.name if entry else None,
        "engine": entry.engine if entry else "megatron",
        "starts": published.starts,
        "plannedOnly": entry.planned_only if entry else None,
        "mode": entry.modes[0] if entry else "pretrain",
        "function": published.function,
        "layout": published.layout,
        "published": entry.published_sizes(profile.known_as(accelerator)) if entry else [],
        "acceleratorType": accelerator,
        **_pods(spec, entry, profile, platform),
        "init": spec.init or InitSpec(),
        "export": spec.export,
        "peft": fine_tuning.adapters(spec, entry, published.function, found) if entry else None,
        "frozen": frozen.frozen_parts(spec, published.function, found) if published.function else [],
        "data": _data_volume(merged["data"], platform, found),
        "checkpoint": checkpoint,
        "recovery": spec.recovery,
        "profileWindow": spec.profile,
        "tracking": spec.tracking,
        "scheduling": scheduling.scheduling(spec.scheduling, accelerator, profile, platform, found),
    }
    settings |= {
        "origins": {path: found.origins[path] for path in sorted(found.origins)},
        "notes": found.notes,
    }
    return _validated(settings, found)


def _merged(
    spec: MegatronRecipeSpec,
    entry: Entry | None,
    published: CatalogLayers,
    profile: AcceleratorProfile,
    accelerator: str,
    found: Diagnostics,
) -> dict[str, Any]:
    """The settings of catalog and recipe together, with what follows from others filled in."""
    merged, found.origins = merge_layers([*published.layers, ("recipe", spec.wire())])
    if spec.image is not None:
        found.origin("image", "recipe")
    performance_options.drop_other_graphs(merged["megatronArgs"], found.origins)
    overlaps.switch_off_inherited(merged["parallelism"], merged["megatronArgs"], found)
    full_sharding.drop_inherited(merged, found)
    if entry is None or entry.engine == "megatron":
        found.extend(dispatcher.package_errors(spec, merged["megatronArgs"], profile, accelerator))
        if profile.platform == "gpu" and not (spec.image or profile.image):
            weight_gradients.leave_out_delayed(merged, published.layout, found)
        data.take_tokenizer(merged["data"], spec, found)
        if entry is not None:
            data.complete_tokenizer(merged["data"])
    _complete(merged, entry, published, profile, found)
    gradients.complete_sums(merged, found)
    if entry is not None and entry.engine == "bridge" and entry.starts:
        if entry.reads_latents:
            latents.complete_data(merged)
        elif entry.fine_tunes:
            fine_tuning.complete_data(merged, spec, found, media=entry.media)
        else:
            bridge_pretraining.complete_data(merged, spec, found)
    if entry is None or not entry.fine_tunes:
        found.extend(
            validation_set_errors(
                merged["data"],
                split_asked=found.is_set_by_user("data.split"),
                evaluates=merged["training"].get("evalIters") != 0,
            )
        )
        found.extend(data.tokenizer_folder_errors(merged["data"], profile, found.origins))
    return merged


def _validated(settings: dict[str, Any], found: Diagnostics) -> ResolvedRecipe:
    """The resolved recipe. Raises InvalidRecipeError, with all errors, where a derived value is invalid."""
    try:
        return ResolvedRecipe.model_validate(settings)
    except ValidationError as problem:
        reported = {error.field for error in found.errors}
        derived = [error for error in _derived_errors(problem) if error.field not in reported]
        raise InvalidRecipeError([*found.errors, *derived]) from None


def _complete(
    merged: dict[str, dict[str, Any]],
    entry: Entry | None,
    published: CatalogLayers,
    profile: AcceleratorProfile,
    found: Diagnostics,
) -> None:
    """Fill in what follows from other settings. Raises InvalidRecipeError if one is missing."""
    model, training = merged["model"], merged["training"]
    if entry is None or entry.engine == "megatron":
        data.complete_data(merged["data"], model, found)
        positions.check(model, training, found)
    elif entry.leaves_sizes_open:
        positions.check(model, training, found)
    elif entry.starts:
        positions.check_of_bridge(entry, merged, found)
    missing = _missing(merged, entry)
    found.extend(missing)
    by_bridge = entry is not None and entry.engine == "bridge"
    schedule.resolve_length(training, found, by_bridge=by_bridge)
    schedule.scale_learning_rate(training, published.batch, found)
    if profile.platform == "cpu":
        cpu.adapt_to_cpu(
            merged,
            found,
            by_bridge=by_bridge,
            splits_sequences=entry is not None and entry.splits_sequences,
            splits_norms=entry is None or entry.splits_norms_on_cpus,
        )
    else:
        _complete_precision(training, found)
    if missing:
        raise InvalidRecipeError(found.errors)


def _pods(
    spec: MegatronRecipeSpec, entry: Entry | None, profile: AcceleratorProfile, platform: PlatformConfig
) -> dict[str, Any]:
    """What is set about the pods: the recipe comes before the profile, the profile before the platform."""
    by_bridge = entry is not None and entry.engine == "bridge"
    image = platform.bridge_image if by_bridge else profile.image or platform.image
    return {
        "profile": profile,
        "acceleratorCount": spec.accelerator.count,
        "perNode": spec.accelerator.per_node or profile.per_node,
        "image": spec.image or image,
        "conversionImage": spec.image or image if by_bridge else platform.bridge_image or spec.image,
        "imagePullSecrets": spec.image_pull_secrets or platform.image_pull_secrets,
        "networkPolicies": platform.network_policies,
        "hub": platform.hub,
        "cpuJobs": platform.cpu_jobs,
        "jobBackend": platform.job_backend,
        "gangScheduling": platform.gang_scheduling,
        "recoveryPriorityClassName": platform.recovery_priority_class_name,
        "topologyAwareQueues": platform.topology_aware_queues,
        "env": profile.env | (spec.env or {}),
        "envValueFrom": (spec.tracking.credentials() if spec.tracking else {}) | (spec.env_value_from or {}),
        "envFrom": spec.env_from or [],
        "serviceAccountName": spec.service_account_name,
    }


def _derived_errors(problem: ValidationError) -> list[FieldError]:
    """Errors of values that follow from others, such as a warm-up in another unit, and are out of bounds."""
    return [
        FieldError(
            functools.reduce(field_path, error["loc"], "spec"),
            f"becomes {shown(error['input'])}: {error['msg'].lower()}",
            "change the settings that it follows from",
        )
        for error in problem.errors(include_url=False)
    ]


def _entry(spec: MegatronRecipeSpec, catalog: Catalog, found: Diagnostics) -> Entry | None:
    if spec.recipe is None:
        return None
    try:
        entry = catalog.get(spec.recipe)
    except InvalidRecipeError as invalid:
        found.extend(invalid.errors)
        return None
    return entry


def _repeated_variables(spec: MegatronRecipeSpec) -> list[FieldError]:
    repeated = sorted((spec.env or {}).keys() & (spec.env_value_from or {}).keys())
    return [
        FieldError(f"spec.envValueFrom.{name}", f"is set together with env.{name}", "keep one of the two")
        for name in repeated
    ]


def _missing(merged: Mapping[str, Mapping[str, Any]], entry: Entry | None) -> list[FieldError]:
    fix = "set it" if entry else f"set it, or set recipe to one of the catalog (`{LIST_COMMAND}`)"
    sized = entry is not None and entry.engine == "bridge" and not entry.leaves_sizes_open
    errors = [
        FieldError(f"spec.{section}.{leaf}", "is not set", fix)
        for section, leaves in _REQUIRED.items()
        for leaf in leaves
        if leaf not in merged[section] and not (section == "model" and sized)
    ]
    training = merged["training"]
    if schedule.largest_batch(training) is None:
        errors.append(FieldError("spec.training.globalBatchSize", "is not set", fix))
    if not {"trainIters", "trainSamples", "trainTokens"} & training.keys():
        message = "the length of the run is not set (trainTokens, trainIters or trainSamples)"
        errors.append(FieldError("spec.training.trainTokens", message, fix))
    return errors


def _data_volume(merged: Settings, platform: PlatformConfig, found: Diagnostics) -> DataSpec:
    spec = DataSpec.model_validate(merged)
    volume = spec.volume
    if (
        volume is None
        or volume.size is None
        or volume.storage_class_name
        or not platform.data_storage_class_name
    ):
        return spec
    found.origin("data.volume.storageClassName", "platform")
    volume = volume.model_copy(update={"storage_class_name": platform.data_storage_class_name})
    return spec.model_copy(update={"volume": volume})


def _complete_precision(training: dict[str, Any], found: Diagnostics) -> None:
    """BF16 where neither recipe nor catalog states a precision, as in Megatron-Bridge's recipes."""
    if training.get("fp16") or training.get("bf16") is not None:
        return
    training["bf16"] = True
    found.origin("training.bf16", "default")
    found.note("no precision is stated: BF16 (training.bf16: false trains in FP32)")


def _checkpoint(
    asked: MegatronRecipeSpec,
    entry: Entry | None,
    profile: AcceleratorProfile,
    platform: PlatformConfig,
    found: Diagnostics,
) -> CheckpointSpec:
    spec = asked.checkpoint
    defaults, volume = platform.checkpoint, spec.volume
    own_loop = entry is None or entry.engine == "megatron"
    large = profile.platform == "gpu" and asked.accelerator.count > _SYNCHRONOUS_UP_TO
    sharded = asked.parallelism is not None and asked.parallelism.use_megatron_fsdp
    if spec.async_save is None and own_loop and large and not sharded:
        spec = spec.model_copy(update={"async_save": True})
        found.origin("checkpoint.asyncSave", "default")
    if volume is None:
        volume = VolumeSpec(size=defaults.size, storage_class_name=defaults.storage_class_name)
        found.origin("checkpoint.volume", "platform")
    elif volume.claim_name is None:
        if volume.size is None:
            found.origin("checkpoint.volume.size", "platform")
        if volume.storage_class_name is None and defaults.storage_class_name is not None:
            found.origin("checkpoint.volume.storageClassName", "platform")
        filled = {
            "size": volume.size or defaults.size,
            "storage_class_name": volume.storage_class_name or defaults.storage_class_name,
        }
        volume = volume.model_copy(update=filled)
    elif not spec.retain_on_delete:
        found.note("retainOnDelete is not used: the claim of checkpoint.volume.claimName is never deleted")
    if spec.keep_best is None and asked.export is not None and "best" in asked.export.moments:
        spec = spec.model_copy(update={"keep_best": True})
        found.origin("checkpoint.keepBest", "export.when")
    if spec.save_interval is None:
        found.origin("checkpoint.saveInterval", "default")
    return spec.model_copy(update={"volume": volume, "save_interval": spec.save_interval or _SAVE_INTERVAL})
