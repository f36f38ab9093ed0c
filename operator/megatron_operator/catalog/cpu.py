"""What Megatron's loop without a GPU cannot do (platform `cpu`: demos and tests)."""

from typing import Any, Final

from megatron_operator.api.errors import FieldError

Sections = dict[str, dict[str, Any]]

_UNSUPPORTED: Final = {
    "training.fp8Format": "FP8 needs Transformer Engine",
    "training.usePrecisionAwareOptimizer": "it needs Transformer Engine's optimizer",
    "parallelism.sequenceParallel": "Megatron's own LayerNorm refuses it without Transformer Engine",
    "parallelism.tpCommOverlap": "it needs Transformer Engine",
    "model.multiLatentAttention": "Megatron builds it with Transformer Engine only",
    "model.applyLayernorm1p": "it needs Apex or Transformer Engine",
}
_MUST_BE_ONE: Final = {
    "parallelism.contextParallelSize": "context parallelism needs Transformer Engine",
}
_REPLACED_KERNELS: Final = {
    "model.moeGroupedGemm": False,
    "model.moePermuteFusion": False,
    "model.moeTokenDispatcherType": "allgather",
    "training.attentionBackend": None,
    "training.transformerImpl": "local",
}
"""Same mathematics, other kernels: what is used instead (None: nothing said)."""


def adapt_to_cpu(merged: Sections, origins: dict[str, str], notes: list[str]) -> list[FieldError]:
    """Swap GPU kernels of the catalog for plain ones, each with a note; return what cannot be had at all."""
    errors = []
    for path, why in _UNSUPPORTED.items():
        if _at(merged, path):
            errors.append(
                FieldError(f"spec.{path}", f"accelerators of platform cpu cannot do it: {why}", _LEAVE)
            )
    for path, why in _MUST_BE_ONE.items():
        size = _at(merged, path) or 1
        if size > 1:
            message = f"{size} is more than accelerators of platform cpu can do: {why}"
            errors.append(FieldError(f"spec.{path}", message, "set 1, or use GPUs"))
    for path, instead in _REPLACED_KERNELS.items():
        asked = _at(merged, path)
        if not asked or asked == instead:
            continue
        if origins.get(path) == "recipe":
            message = f"{asked!r} needs a GPU"
            errors.append(FieldError(f"spec.{path}", message, _LEAVE))
            continue
        section, leaf = path.split(".")
        merged[section].pop(leaf)
        if instead:
            merged[section][leaf] = instead
        notes.append(f"{leaf} {asked!r} of the catalog is left out: it needs a GPU")
    return errors


_LEAVE: Final = "leave it out, or use GPUs"


def _at(merged: Sections, path: str) -> Any:
    section, leaf = path.split(".")
    return merged[section].get(leaf)
