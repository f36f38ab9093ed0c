"""Error of the planner as its user sees it: each published layout is asked for by name, through `plan`.

`python -m bench.planned` prints one line per layout, then mean, bias and worst error over all, over those
whose plan runs exactly as published, and by model, precision and hardware. Where the project's engine
leaves out a setting of the function, the plan is for a slower run, so its error is not the model's.
`bench.planner` tests the step-time formula alone, with the settings of each run.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from megatron_operator import catalog
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.catalog import PublishedLayout
from megatron_operator.cli.default_platform import default_platform
from megatron_operator.planner import PlannedRun, admit

from bench.published import document, measurements

_PRECISIONS = {"bf16": "bf16", "fp8": "fp8cs", "mxfp8": "fp8mx"}
"""Precision of a measurement -> that of Megatron-Bridge's function."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A published run, and what `plan --recipe FUNCTION` states for it."""

    function: str
    model: str
    precision: str
    hardware: str
    published: float
    """Tokens per second and GPU."""
    planned: float | None
    """None where the recipe is refused."""
    note: str
    """What the plan leaves out or does not use; empty where the run is exactly as published."""

    @property
    def error(self) -> float:
        """Planned over published, less 1; -1 where the recipe is refused."""
        return (self.planned or 0.0) / self.published - 1


@cache
def _library() -> catalog.Catalog:
    return catalog.load()


def function_of(entry: dict[str, Any]) -> PublishedLayout | None:
    """The function with the layout of a measurement; None where today's catalog has it with another one."""
    hardware = entry["accelerator"].removesuffix("-nvl72")
    for name, owner in _library().functions().items():
        found = _library().function(name) if owner == entry["model"] and "pretrain" in name else None
        if found is not None and found.precision == _PRECISIONS[entry["precision"]]:
            sizes, batch = found.parallelism, found.training
            layout = {
                "count": found.count,
                "tp": sizes.tensor_model_parallel_size or 1,
                "pp": sizes.pipeline_model_parallel_size or 1,
                "vp": sizes.num_virtual_stages_per_pipeline_rank or 1,
                "cp": sizes.context_parallel_size or 1,
                "ep": sizes.expert_model_parallel_size or 1,
                "mbs": batch.micro_batch_size,
                "gbs": batch.global_batch_size,
            }
            same = all(entry.get(name, 1) == value for name, value in layout.items())
            if same and hardware in found.accelerators and found.benchmark:
                return found
    return None


def planned(function: PublishedLayout) -> PlannedRun:
    """The run that a recipe with only the function's name, hardware and count becomes.

    Raises InvalidRecipeError where it is refused.
    """
    accelerator = {"type": function.accelerators[0], "count": function.count}
    spec = {"recipe": function.function, "accelerator": accelerator, "data": {"mockData": True}}
    return admit("run", MegatronRecipeSpec.model_validate(spec), default_platform(), _library())


def runs() -> Iterator[Seen]:
    """Every measurement of Megatron-Bridge whose layout is that of a function."""
    for entry, measurement in zip(document()["measurements"], measurements(), strict=True):
        function = function_of(entry) if entry["source"].startswith("bridge") else None
        if function is None:
            continue
        speed, note = None, ""
        try:
            plan = planned(function).plan
            speed = plan.expected.tokens_per_second_per_gpu if plan.expected else None
            note = "; ".join(text for text in plan.notes if "left out" in text or "not used" in text)
        except InvalidRecipeError as refused:
            note = str(refused.errors[0])
        yield Seen(
            function=str(function.function),
            model=entry["model"],
            precision=entry["precision"],
            hardware=function.accelerators[0],
            published=measurement.tokens_per_second_per_gpu,
            planned=speed,
            note=note,
        )


def summary(of: list[Seen]) -> list[str]:
    """Mean of the absolute errors, bias and worst, over all and by model, precision and hardware."""
    groups: tuple[tuple[str, Callable[[Seen], str]], ...] = (
        ("all", lambda _: "layouts"),
        ("run", lambda each: "with less" if each.note else "as published"),
        ("model", lambda each: each.model),
        ("precision", lambda each: each.precision),
        ("hardware", lambda each: each.hardware),
    )
    lines = []
    for title, key in groups:
        for name in sorted({key(each) for each in of}):
            errors = [each.error for each in of if key(each) == name]
            mean = sum(map(abs, errors)) / len(errors)
            bias, worst = sum(errors) / len(errors), max(errors, key=abs)
            lines.append(
                f"{title:<10} {name:<18} {len(errors):>3} mean {mean:.1%} bias {bias:+.1%} worst {worst:+.1%}"
            )
    return lines


def main() -> int:
    """Print all runs, the worst first, and the summary."""
    read = sorted(runs(), key=lambda each: -abs(each.error))
    for each in read:
        speed = f"{each.planned:,.0f}" if each.planned else "refused"
        figures = f"{each.error:+7.1%}  {each.function}: {speed}, published {each.published:,.0f}"
        print(f"{figures}  {each.note}".rstrip())
    print("\n".join(["", *summary(read)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
