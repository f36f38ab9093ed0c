"""Settings below those of a recipe: defaults, its catalog entry, its function and its published layout."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, get_args

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.platform import AcceleratorProfile, DispatcherPackage, ImagePackage
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.catalog import bridge_functions, schedule
from megatron_operator.catalog.catalog import Catalog
from megatron_operator.catalog.entry import Entry, PublishedLayout
from megatron_operator.catalog.merge import Settings, merge_layers
from megatron_operator.catalog.published_layouts import FP4_ESTIMATE, layout_settings, select_layout

DEFAULTS: Final[Settings] = {"training": {"evalInterval": 1000, "evalIters": 32, "logInterval": 10}}
"""Those of every recipe."""
_EVERY_PACKAGE: Final = get_args(DispatcherPackage)
"""Megatron-Bridge's own image has them, in which the command of a recipe that the operator does not start
runs."""


@dataclass(frozen=True, slots=True)
class CatalogLayers:
    """Layers of settings, lowest first, and what they come from."""

    layers: list[tuple[str, Settings]]
    function: PublishedLayout | None = None
    layout: PublishedLayout | None = None
    batch: int | None = None
    """Global batch size of the entry."""
    starts: bool = True
    """Whether the operator starts it."""


def catalog_layers(
    entry: Entry,
    spec: MegatronRecipeSpec,
    catalog: Catalog,
    profile: AcceleratorProfile,
    accelerator: str,
    found: Diagnostics,
) -> CatalogLayers:
    """Defaults, the entry, its function and its published layout for this hardware."""
    label, hardware = f"catalog {entry.name}", profile.known_as(accelerator)
    layers: list[tuple[str, Settings]] = [("default", DEFAULTS), (label, entry.wire())]
    function = named = catalog.function(spec.recipe or "")
    if entry.engine == "bridge" and entry.planned_only is None:
        function = bridge_functions.select_function(entry, named, hardware, spec)
        found.extend(bridge_functions.unsupported_setting_errors(spec, function, entry))
    starts = entry.starts and (function is None or entry.can_start(function))
    layout = select_layout(
        entry, hardware, spec, found, named, _packages(entry, spec, profile, starts=starts)
    )
    if function is not None:
        settings = bridge_functions.function_settings(function, entry, found)
        asked = (spec.training.fp4_format or spec.training.fp8_format) if spec.training else None
        if layout is None and entry.engine == "megatron" and function.precision == "nvfp4" and asked is None:
            found.note(
                f"{function.function} computes in NVFP4; without its layout it is BF16, unless"
                " training.fp4Format is set"
            )
        layers.append((f"{label}, {function.function}", settings))
        if layout is None and entry.engine == "bridge":
            layers.append((f"{label}, {function.function}", layout_settings(function)))
    if layout is None and spec.training is not None and spec.training.fp4_format is not None:
        found.note(FP4_ESTIMATE)
    if layout is not None:
        layers.append((f"{label}, layout {layout.title}", layout_settings(layout)))
    batch = schedule.largest_batch(merge_layers(layers)[0]["training"])
    return CatalogLayers(layers, function, layout, batch, starts)


def _packages(
    entry: Entry, spec: MegatronRecipeSpec, profile: AcceleratorProfile, *, starts: bool
) -> Collection[ImagePackage]:
    """Packages of the image that runs it; on a CPU, which replaces all kernels, those of the function."""
    if entry.engine == "bridge":
        return profile.image_has if starts and profile.platform == "gpu" else _EVERY_PACKAGE
    return () if spec.image else profile.image_has
