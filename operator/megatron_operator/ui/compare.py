"""Two runs side by side."""

from dataclasses import dataclass
from typing import Any

from megatron_contract.limits import MAX_INCIDENTS

from megatron_operator.api.recovery_status import LostSeconds
from megatron_operator.api.status import MegatronRecipeStatus
from megatron_operator.cli.timeline import format_duration
from megatron_operator.lifecycle.status_reading import read_status
from megatron_operator.ui.charts import short
from megatron_operator.ui.shown_runs import ShownRun

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Pair:
    """One property of both runs."""

    name: str
    left: str
    right: str

    @property
    def differs(self) -> bool:
        """Whether the runs differ in it."""
        return self.left != self.right


def names(left: ShownRun, right: ShownRun) -> list[str]:
    """What two runs are called side by side: with their UIDs only where the names do not distinguish them."""
    found = [
        f"{each.recipe['metadata']['namespace']}/{each.recipe['metadata']['name']}"
        + ("" if each.archived is None else " (deleted)")
        + ("" if each.journal is None else " (journal)")
        for each in (left, right)
    ]
    return found if found[0] != found[1] else [left.reference, right.reference]


def compare(left: Object, right: Object) -> list[Pair]:
    """What two runs are and how they go, in the same words; a property that neither has is left out."""
    both = [_properties(each) for each in (left, right)]
    # In the order of the run of which more is known: a journal lacks some.
    names = list(dict.fromkeys(name for each in sorted(both, key=len, reverse=True) for name in each))
    return [Pair(name, both[0].get(name, "–"), both[1].get(name, "–")) for name in names]


def settings(left: Object, right: Object) -> list[Pair]:
    """Fields of the spec in which two runs differ, by path."""
    both = [dict(_leaves("", each.get("spec") or {})) for each in (left, right)]
    names = sorted(set(both[0]) | set(both[1]))
    pairs = [Pair(name, both[0].get(name, "–"), both[1].get(name, "–")) for name in names]
    return [each for each in pairs if each.differs]


def _properties(recipe: Object) -> dict[str, str]:
    status = read_status(recipe.get("status"))[0]
    if "spec" not in recipe:
        # A journal: it has neither recipe nor phase, and counts starts of all ranks instead of restarts.
        recovery = _recovery(status)
        recovery.pop("Restarts", None)
        if status.recovery is not None and len(status.recovery.history) == MAX_INCIDENTS:
            recovery.pop("Lost to incidents", None)  # There may have been more.
        return {"Phase": "not recorded", "Recipe": "not recorded"} | _progress(status) | recovery
    found = {"Phase": status.phase or "not reconciled yet"}
    found["Recipe"] = str((recipe.get("spec") or {}).get("recipe") or "own model")
    return found | _plan(status) | _progress(status) | _recovery(status)


def _plan(status: MegatronRecipeStatus) -> dict[str, str]:
    plan = status.plan
    if plan is None:
        return {}
    sizes = {
        "TP": plan.tensor_model_parallel_size,
        "PP": plan.pipeline_model_parallel_size,
        "CP": plan.context_parallel_size,
        "EP": plan.expert_model_parallel_size,
        "DP": plan.data_parallel_size,
    }
    found = {
        "Accelerators": f"{plan.world_size:,} on {plan.nodes:,} nodes",
        "Layout": " ".join(f"{name} {size}" for name, size in sizes.items()),
        "Batch": f"{plan.global_batch_size:,} (micro batch {plan.micro_batch_size})",
        "Recomputation": plan.recompute_granularity or "none",
    }
    if plan.memory_per_gpu is not None:
        found["Planned memory"] = f"{plan.memory_per_gpu.total / 2**30:.1f} GiB"
    if plan.expected is not None:
        found["Planned s/iteration"] = f"{plan.expected.step_seconds:.3g}"
        found["Planned MFU"] = f"{plan.expected.mfu:.1%}"
    return found


def _progress(status: MegatronRecipeStatus) -> dict[str, str]:
    progress = status.progress
    if progress is None:
        return {}
    values = {
        "Iteration": None if progress.iteration is None else f"{progress.iteration:,}",
        "Loss": None if progress.lm_loss is None else f"{progress.lm_loss:.4g}",
        "s/iteration": None if progress.step_seconds is None else f"{progress.step_seconds:.3g}",
        "Tokens/s": None if progress.tokens_per_second is None else short(progress.tokens_per_second),
        "TFLOP/s per accelerator": None
        if progress.tflops_per_gpu is None
        else f"{progress.tflops_per_gpu:,.0f}",
    }
    return {name: value for name, value in values.items() if value is not None}


def _recovery(status: MegatronRecipeStatus) -> dict[str, str]:
    recovery = status.recovery
    if recovery is None:
        return {}
    lost = sum(getattr(recovery.lost_seconds, name) or 0.0 for name in LostSeconds.model_fields)
    found = {"Restarts": f"{recovery.restarts:,}", "Lost to incidents": format_duration(lost)}
    if recovery.goodput is not None:
        found["Goodput"] = f"{recovery.goodput:.1%}"
    return found


def _leaves(path: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [leaf for key in value for leaf in _leaves(f"{path}.{key}".removeprefix("."), value[key])]
    return [(path, str(value))]
