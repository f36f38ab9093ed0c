"""Error of the planner as its user sees it: each published layout is asked for by name, through `plan`.

`python -m bench.planned` plans on two platforms: one whose image has DeepEP and HybridEP, as the published
runs had, and one with the project's image, which has neither. For each it prints one line per layout, then
mean, bias and worst error over all, over those whose plan runs as published, and by model, precision and
hardware. Where a setting that the planner times is left out, the plan is for a slower run, so its error is
not the model's. `bench.planner` tests the step-time formula alone, with the settings of each run.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args

from megatron_operator import catalog
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.model import ModelSpec
from megatron_operator.api.platform import ImagePackage, PlatformConfig
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.catalog import PublishedLayout
from megatron_operator.cli.default_platform import default_platform
from megatron_operator.planner import PlannedRun, admit
from megatron_operator.planner.estimate.workload import execution

from bench.published import document, measurements

IMAGES: dict[str, tuple[ImagePackage, ...]] = {
    "an image with DeepEP and HybridEP": ("deepep", "hybridep"),
    "the project's image": (),
}
"""Packages of the images for which errors are printed."""
_PRECISIONS = {"bf16": "bf16", "fp8": "fp8cs", "mxfp8": "fp8mx", "nvfp4": "nvfp4"}
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
    """What the plan leaves out or does not use, if the planner times it; else empty."""
    unpriced: str = ""
    """What it leaves out without a predicted cost."""

    @property
    def error(self) -> float:
        """Planned over published, less 1; -1 where the recipe is refused."""
        return (self.planned or 0.0) / self.published - 1


@cache
def _library() -> catalog.Catalog:
    return catalog.load()


@cache
def _platform(packages: tuple[ImagePackage, ...]) -> PlatformConfig:
    assumed = default_platform()
    profiles = {
        name: profile.model_copy(update={"image_has": list(packages)})
        for name, profile in assumed.accelerators.items()
    }
    return assumed.model_copy(update={"accelerators": profiles})


def function_of(entry: dict[str, Any]) -> PublishedLayout | None:
    """The function with layout and switches of a measurement; None where today's catalog has it otherwise."""
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
            ran_so = switches(found) == set(entry.get("with", ())) - {"opFuser"}
            if same and ran_so and hardware in found.accelerators and found.benchmark:
                return found
    return None


def switches(function: PublishedLayout) -> set[str]:
    """What a function switches on, as `with` of a measurement names it."""
    whole = function.with_image(get_args(ImagePackage))
    args, model = whole.megatron_args or {}, whole.model or ModelSpec()
    run = execution(whole.training, whole.parallelism, args, dispatcher=model.moe_token_dispatcher_type)
    graphs = {"none": set(), "partial": {"partialGraphs"}, "full": {"graphs"}}[run.graphs]
    named = {
        "flex": run.deduplicated_dispatch,
        "epOverlap": run.expert_overlap,
        "tpOverlap": run.tensor_overlap,
    }
    return graphs | {name for name, on in named.items() if on}


def planned(
    function: PublishedLayout,
    packages: tuple[ImagePackage, ...] = (),
    settings: Mapping[str, Any] | None = None,
) -> PlannedRun:
    """The run that a recipe with the function's name, hardware and count becomes.

    `packages` are those of the image, `settings` sections of `spec` beside these. Raises InvalidRecipeError
    where the recipe is refused.
    """
    accelerator = {"type": function.accelerators[0], "count": function.count}
    spec = {"recipe": function.function, "accelerator": accelerator, "data": {"mockData": True}}
    spec |= settings or {}
    return admit("run", MegatronRecipeSpec.model_validate(spec), _platform(packages), _library())


def runs(packages: tuple[ImagePackage, ...] = ()) -> Iterator[Seen]:
    """Every measurement of Megatron-Bridge whose layout is that of a function, on an image with packages."""
    for entry, measurement in zip(document()["measurements"], measurements(), strict=True):
        function = function_of(entry) if entry["source"].startswith("bridge") else None
        if function is None:
            continue
        speed, note, unpriced = None, "", ""
        try:
            run = planned(function, packages)
            speed = run.plan.expected.tokens_per_second_per_gpu if run.plan.expected else None
            left_out = (run.resolved.layout or function).left_out or []
            unused = [text for text in run.plan.notes if "not used" in text]
            note = "; ".join([*unused, *(f"without {each.setting}" for each in left_out if each.args)])
            unpriced = ", ".join(each.setting for each in left_out if not each.args)
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
            unpriced=unpriced,
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
    """Print the runs of both images, the worst first, and their summaries."""
    for title, packages in IMAGES.items():
        print(f"On {title}:\n")
        read = sorted(runs(packages), key=lambda each: -abs(each.error))
        for each in read:
            speed = f"{each.planned:,.0f}" if each.planned else "refused"
            figures = f"{each.error:+7.1%}  {each.function}: {speed}, published {each.published:,.0f}"
            further = f"  not timed: {each.unpriced}" if each.unpriced else ""
            print(f"{figures}  {each.note}".rstrip() + further)
        print("\n".join(["", *summary(read), ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
