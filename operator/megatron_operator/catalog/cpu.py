"""Adapts a recipe to platform `cpu` (demos and tests): what Megatron does not support without a GPU."""

from typing import Any, Final

from megatron_operator.api.diagnostics import Diagnostics

Sections = dict[str, dict[str, Any]]

_AWARE: Final = "training.usePrecisionAwareOptimizer"
_UNSUPPORTED: Final = {
    "training.fp8Format": "FP8 needs Transformer Engine",
    "training.fp4Format": "FP4 needs Transformer Engine and Blackwell",
    _AWARE: "it needs Transformer Engine's optimizer",
    "parallelism.tpCommOverlap": "it needs Transformer Engine",
}
_OF_FUNCTIONS: Final = (_AWARE, "parallelism.tpCommOverlap")
_SEQUENCES: Final = "parallelism.sequenceParallel"
_LOW_RANK: Final = "model.qLoraRank"
_CONTEXT: Final = "parallelism.contextParallelSize"
_REPLACED_KERNELS: Final = {
    "model.moeGroupedGemm": False,
    "model.moePermuteFusion": False,
    "model.moeTokenDispatcherType": "allgather",
    "training.attentionBackend": None,
    "training.transformerImpl": "local",
}
"""GPU kernel -> the equivalent setting for a CPU (None: unset)."""


def adapt_to_cpu(
    merged: Sections,
    found: Diagnostics,
    *,
    by_bridge: bool = False,
    splits_sequences: bool = False,
    splits_norms: bool = True,
) -> None:
    """Replace the catalog's GPU kernels, each with a note; add an error for each unsupported setting.

    `by_bridge`: Megatron-Bridge trains. What its function sets and a CPU lacks is left out.
    `splits_sequences`: attention splits sequences over ranks without Transformer Engine; `splits_norms`:
    norms do, over tensor-parallel ranks.
    """
    if by_bridge and not found.is_set_by_user(_SEQUENCES):
        # The plan has it where experts require it.
        merged["parallelism"].pop("sequenceParallel", None)
    if _at(merged, _SEQUENCES) and not splits_norms:
        message = "is not supported on platform cpu: no small model of this architecture was trained with it"
        found.error(f"spec.{_SEQUENCES}", message, _LEAVE)
    for path in _OF_FUNCTIONS if by_bridge else ():
        if _at(merged, path) and not found.is_set_by_user(path):
            section, leaf = path.split(".")
            merged[section].pop(leaf)
            found.note(f"{leaf} of the function is left out: {_UNSUPPORTED[path]}")
    for path, why in _UNSUPPORTED.items():
        if _at(merged, path):
            found.error(f"spec.{path}", f"is not supported on platform cpu: {why}", _LEAVE)
    if not by_bridge and _at(merged, "model.multiLatentAttention") and not _at(merged, _LOW_RANK):
        message = (
            "is not set, which is not supported on platform cpu: the norm of queries needs Transformer Engine"
        )
        found.error(f"spec.{_LOW_RANK}", message, "set it, or use GPUs")
    size = _at(merged, _CONTEXT) or 1
    if size > 1 and not splits_sequences:
        message = f"{size} is not supported on platform cpu: context parallelism needs Transformer Engine"
        found.error(f"spec.{_CONTEXT}", message, "set 1, or use GPUs")
    for path, instead in _REPLACED_KERNELS.items():
        asked = _at(merged, path)
        if not asked or asked == instead:
            continue
        if found.is_set_by_user(path):
            message = f"{asked!r} needs a GPU"
            found.error(f"spec.{path}", message, _LEAVE)
            continue
        section, leaf = path.split(".")
        merged[section].pop(leaf)
        if instead:
            merged[section][leaf] = instead
        found.note(f"{leaf} {asked!r} of the catalog is left out: it needs a GPU")


_LEAVE: Final = "leave it out, or use GPUs"


def _at(merged: Sections, path: str) -> Any:
    section, leaf = path.split(".")
    return merged[section].get(leaf)
