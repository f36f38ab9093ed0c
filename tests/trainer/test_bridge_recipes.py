"""Every function that the operator starts by Megatron-Bridge: its model is built small, and trained.

As the operator renders it, by the trainer's code, on one rank. Layers are of the family's kinds, losses are
numbers, and what is trained changes.
"""

import importlib.util
import math
import re
from collections.abc import Iterator
from typing import Any

import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.catalog import Entry
from megatron_trainer.telemetry.reporter import FINISHED

from testkit import small_models
from testkit.small_models import ON_SEVERAL_RANKS
from testkit.weights.warm import WarmConverter
from tests.trainer.small_runs import ITERATIONS, SmallRuns, Started, started
from tests.trainer.warm_process import WarmProcess

RUNS = tuple(started())
OF_THE_MODEL = re.compile(r".*_(?=(pretrain|peft|sft)_)|_(\d|gb)[^_]*|_h100|_bf16|_config")
"""What a function's name has of the model's generation and size and of the GPUs, which a small model has none
of. What is left is how it trains, such as packed samples or another optimizer."""
UNMOVED = (r"\.local_experts\.", r"vision.*\.[qk]_proj\.", r"\.(A_log|dt_bias)$")
"""Tensors that two short iterations may leave as they are: of experts that no token is for, of queries and
keys of patches, which are alike in pictures of one colour, and of the decay in gated delta nets."""
NOT_REACHED = {
    "deepseek-v4": r"core_attention\.compressor\.",
    "gemma4-e4b": r"k_layernorm",
    "flux1": r"context_mlp|added_",
}
"""What recipe names begin with -> further ones: of entries for more tokens than a sequence has, of layers
with the keys of others, and behind gates that begin at zero."""
PARTIALLY_PREDICTED = ("glm4.5-", "k-exaone-")
"""What recipe names begin with whose small model has another number of predicted tokens (small_models)."""
SEES, HEARS = r"vision|visual", r"audio|sound"
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None, reason="needs .venv-bridge: run make bridge-recipes"
)


@pytest.fixture(scope="module")
def small_runs(
    tmp_path_factory: pytest.TempPathFactory, converter: WarmConverter, warm_bridge: WarmProcess
) -> SmallRuns:
    """What runs functions."""
    return SmallRuns(tmp_path_factory.mktemp("runs"), converter, warm_bridge)


def published_parts(entry: Entry) -> dict[str, Any]:
    """What the model of a recipe is made of, as the catalog has it."""
    model = entry.model
    layers, *predictions = (model.hybrid_layer_pattern or "").split("/")
    return {
        "experts": bool(model.num_experts),
        "shared experts": bool(model.moe_shared_expert_intermediate_size),
        "queries of a low rank": bool(model.q_lora_rank),
        "tied output": not model.untie_embeddings_and_output_weights,
        "kinds of hybrid layers": set(layers),
        "prediction": bool(model.mtp_num_layers or predictions),
        # A function that pretrains on text builds that part of the model alone.
        "images": entry.media in ("images", "media"),
        "sound": entry.media in ("sound", "media"),
    }


def built_parts(notes: dict[str, Any]) -> dict[str, Any]:
    """The same of what a rank has built (rank_alone)."""
    model, tensors = notes["model"], notes["tensors"]
    layers, *predictions = (model["hybrid_layer_pattern"] or "").split("/")
    # Configurations of hybrid models have experts whether there are such layers or not.
    sparse = bool(model["num_moe_experts"]) and (not layers or "E" in layers)
    return {
        "experts": sparse,
        "shared experts": sparse and bool(model["moe_shared_expert_intermediate_size"]),
        "queries of a low rank": bool(model["q_lora_rank"]),
        "tied output": bool(model["share_embeddings_and_output_weights"]),
        "kinds of hybrid layers": set(layers),
        "prediction": bool(model["mtp_num_layers"] or predictions),
        "images": any(re.search(SEES, name) for name in tensors),
        "sound": any(re.search(HEARS, name) for name in tensors),
    }


def left_as_they_are(run: Started, notes: dict[str, Any]) -> set[str]:
    """Tensors that are trained, that every batch reaches, and that have not changed."""
    names = (pattern for start, pattern in NOT_REACHED.items() if run.entry.name.startswith(start))
    expected = "|".join([*UNMOVED, *names])
    return {name for name in {*notes["trained"]} - {*notes["changed"]} if not re.search(expected, name)}


def each_kind_first() -> Iterator[Any]:
    """All runs; one that trains the small model of an earlier one, and likewise, is marked `repeats`."""
    seen = set()
    for run in RUNS:
        kind = (
            small_models.of_recipe(run.entry).name,
            run.entry.modes[0],
            OF_THE_MODEL.sub("", run.function),
        )
        marks = [pytest.mark.repeats] if kind in seen else []
        seen.add(kind)
        yield pytest.param(run, marks=marks, id=run.function)


@pytest.mark.parametrize("run", each_kind_first())
def test_a_small_model_is_built_and_trained_as_the_operator_renders_it(
    run: Started, small_runs: SmallRuns
) -> None:
    if reason := ON_SEVERAL_RANKS.get(run.function):
        with pytest.raises(InvalidRecipeError, match=reason):
            small_runs.run(run)
        return
    code, notes, log = small_runs.run(run)

    assert "model" in notes, log[-3000:]
    if not run.entry.reads_latents:
        built, published = built_parts(notes), published_parts(run.entry)
        if run.entry.name.startswith(PARTIALLY_PREDICTED):
            del built["prediction"], published["prediction"]
        assert built == published
    assert code == FINISHED, log[-3000:]
    assert len(notes["losses"]) == ITERATIONS
    assert all(math.isfinite(loss) for losses in notes["losses"] for loss in losses.values())
    assert notes["changed"]
    assert left_as_they_are(run, notes) == set()
    if run.entry.modes[0] == "lora":
        assert all(".adapter." in name for name in notes["trained"])


def test_every_recipe_that_starts_is_among_them() -> None:
    trained = {run.entry.name for run in RUNS if run.function not in ON_SEVERAL_RANKS}
    assert trained == {run.entry.name for run in RUNS}
