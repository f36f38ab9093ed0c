"""Merges layers of settings, leaf by leaf, except where leaves only make sense together.

Works on the wire form (camelCase dictionaries), so that `extends` in the catalog's files and a recipe on top
of its entry follow the same rule.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

Settings = Mapping[str, Any]

SECTIONS: Final = ("model", "training", "parallelism", "data", "megatronArgs")

_EXCLUSIVE_GROUPS: Final[dict[str, tuple[frozenset[str], ...]]] = {
    "training": (
        frozenset({"trainIters", "trainSamples", "trainTokens"}),
        frozenset({"lrWarmupIters", "lrWarmupSamples", "lrWarmupFraction"}),
        frozenset({"lrDecayIters", "lrDecaySamples"}),
        frozenset({"globalBatchSize", "stepBatchSizeSchedule"}),
        frozenset({"bf16", "fp16"}),
        frozenset({"fp8Format", "fp4Format"}),
    ),
    "parallelism": (frozenset({"recomputeGranularity", "recomputeMethod", "recomputeNumLayers"}),),
    "data": (frozenset({"blend", "datasetRoot", "mockData", "prepare", "sources"}),),
    "data.tokenizer": (frozenset({"tokenizerType", "tokenizerModel", "vocabFile", "mergeFile"}),),
    "data.volume": (frozenset({"claimName", "size", "storageClassName", "accessMode"}),),
}
"""By section: leaves that replace each other. Setting one removes the others of lower layers."""

_REQUIRED: Final[dict[str, dict[str, tuple[str, str | None]]]] = {
    "training": {
        "fp8Recipe": ("fp8Format", None),
        "fp8AmaxHistoryLen": ("fp8Format", None),
        "fp8AmaxComputeAlgo": ("fp8Format", None),
        "fp8ParamGather": ("fp8Format", None),
        "fp4ParamGather": ("fp4Format", None),
    },
    "parallelism": {"recomputeModules": ("recomputeGranularity", "selective")},
}
"""By section: leaf -> the leaf that it belongs to, and the value which that must have (None: any). A layer
that takes this away also removes the leaf of lower layers."""

_ABSENT: Final[dict[str, dict[str, object]]] = {"model": {"mtpNumLayers": 0}}
"""By section: leaf -> the value that removes it, as null does; Megatron has no such value of its flag."""

_NESTED: Final = {"data": frozenset({"tokenizer", "volume"})}


def overlay(section: str, base: Settings, top: Settings) -> dict[str, Any]:
    """`base` overridden by `top`. A null in `top` removes the leaf."""
    merged, absent = dict(base), _ABSENT.get(section, {})
    for group in _EXCLUSIVE_GROUPS.get(section, ()):
        if group & top.keys():
            for leaf in group - top.keys():
                merged.pop(leaf, None)
    for leaf, value in top.items():
        below = merged.get(leaf)
        if value is None or (leaf in absent and value == absent[leaf]):
            merged.pop(leaf, None)
        elif leaf in _NESTED.get(section, ()) and isinstance(value, Mapping) and isinstance(below, Mapping):
            merged[leaf] = overlay(f"{section}.{leaf}", below, value)
        else:
            merged[leaf] = value
    for leaf, required in _REQUIRED.get(section, {}).items():
        if leaf not in top and _has(base, *required) and not _has(merged, *required):
            merged.pop(leaf, None)
    return merged


def _has(settings: Settings, leaf: str, value: str | None) -> bool:
    present = settings.get(leaf)
    return present is not None if value is None else present == value


def merge_layers(layers: Iterable[tuple[str, Settings]]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Merge labelled layers, lowest first; also returns the label that each `section.leaf` came from."""
    merged: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    origins: dict[str, str] = {}
    for label, layer in layers:
        for section in SECTIONS:
            top = layer.get(section) or {}
            merged[section] = overlay(section, merged[section], top)
            origins.update({f"{section}.{leaf}": label for leaf in top})
    kept = {f"{section}.{leaf}" for section, leaves in merged.items() for leaf in leaves}
    return merged, {path: label for path, label in origins.items() if path in kept}
