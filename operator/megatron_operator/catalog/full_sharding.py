"""Settings of the catalog that Megatron FSDP does not take, in a recipe that is trained with it."""

from typing import Any, Final

from megatron_operator.api.diagnostics import Diagnostics

NOT_TAKEN: Final = (
    ("training", "usePrecisionAwareOptimizer"),
    ("parallelism", "tpCommOverlap"),
    ("parallelism", "ddpBucketSize"),
)
"""Section and name of each."""


def drop_inherited(merged: dict[str, dict[str, Any]], found: Diagnostics) -> None:
    """Drop them, with a note. Those that the recipe itself sets stay, and the planner refuses them."""
    if not merged["parallelism"].get("useMegatronFsdp"):
        return
    for section, name in NOT_TAKEN:
        path = f"{section}.{name}"
        if merged[section].get(name) and not found.is_set_by_user(path):
            del merged[section][name]
            del found.origins[path]
            found.note(f"{path} of the catalog is dropped: it is not taken with parallelism.useMegatronFsdp")
