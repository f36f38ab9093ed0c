"""Megatron accepts planned layouts: every recipe on counts without a published layout."""

import contextlib
from collections.abc import Iterator

import pytest
from megatron_operator import catalog
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.catalog import ResolvedRecipe
from megatron_operator.planner import megatron_arguments, plan
from stages import Megatron

PLATFORM = PlatformConfig.model_validate(
    {"accelerators": {"h100-sxm": {}, "gb200": {"perNode": 4}}, "image": "trainer"}
)
COUNTS = (("h100-sxm", 24), ("gb200", 72), ("h100-sxm", 2048))


def planned() -> Iterator[tuple[str, ResolvedRecipe]]:
    """Recipes that fit on a count, resolved without a published layout."""
    for entry in catalog.load():
        if entry.engine != "megatron" or entry.layout_for("cpu", 4):
            continue
        for accelerator, count in COUNTS:
            if entry.layout_for(accelerator, count):
                continue
            asked = {"type": accelerator, "count": count}
            # A batch that every count divides; the recipe's own is for its published counts.
            spec = {
                "recipe": entry.name,
                "accelerator": asked,
                "training": {"globalBatchSize": 18432, "trainIters": 10000, "lrWarmupIters": 100},
                "data": {"mockData": True},
            }
            resolved = catalog.resolve(MegatronRecipeSpec.model_validate(spec), PLATFORM, catalog.load())
            with contextlib.suppress(InvalidRecipeError):  # does not fit on the count
                plan(resolved)
                yield f"{entry.name} {count}x{accelerator}", resolved


CASES = dict(planned())


def test_there_are_planned_cases() -> None:
    assert len(CASES) > 40


@pytest.mark.parametrize("name", CASES)
def test_megatron_accepts_planned_layouts(name: str, megatron: Megatron) -> None:
    resolved = CASES[name]
    made = plan(resolved)
    started = megatron.start(megatron_arguments(resolved, made, "run"), made.world_size)
    assert started.degrees["tensor"] == made.tensor_model_parallel_size
    assert started.degrees["pipeline"] == made.pipeline_model_parallel_size
    assert started.degrees["data"] == made.data_parallel_size
    assert started.degrees["expert_data"] == made.expert_data_parallel_size
    assert started.micro_batches == made.gradient_accumulation
    assert sum(map(sum, started.stage_layers)) == resolved.model.num_layers
