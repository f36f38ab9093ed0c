"""Models for which Megatron-Bridge has no function: planned like others, and refused with their reason."""

from collections.abc import Callable
from typing import Any

import pytest
from megatron_operator import catalog, manifests
from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.catalog import Entry
from megatron_operator.catalog.architecture import Architecture, LayerRun
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner import PlannedRun, megatron_arguments, plan
from megatron_operator.planner.estimate.layers import LayerKind
from megatron_operator.planner.estimate.model_shape import model_shape
from megatron_operator.planner.estimate.parameters import layer_parameters, parameters
from megatron_operator.planner.estimate.uncertainty import table
from megatron_operator.planner.estimate.workload import Workload

LIBRARY = catalog.load()
Resolve = Callable[..., ResolvedRecipe]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("minimax-m2", "moe"),
        ("falcon-h1-34b", "hybrid"),
        ("llama3.3-nemotron-super-49b", "dense"),
        ("gemma4-vl-31b", "dense"),
    ],
)
def test_the_interval_is_that_of_models_that_were_not_measured(
    resolve: Resolve, name: str, kind: str
) -> None:
    found = plan(resolve(name, 64))
    speed = found.expected
    assert speed is not None
    assert speed.tokens_per_second_per_gpu_high is not None
    factor = speed.tokens_per_second_per_gpu_high / speed.tokens_per_second_per_gpu
    assert factor == pytest.approx(table()[kind]["unmeasured"], rel=0.01)
    assert found.memory_per_gpu is not None


def test_no_job_is_created_and_the_reason_is_that_of_the_entry(resolve: Resolve) -> None:
    reason = "nothing trains it"
    planned = {"planned_only": reason, "starts": False, "function": None, "layout": None}
    resolved = resolve("llama3.3-nemotron-super-49b", 256).model_copy(update=planned)
    found = plan(resolved)

    for refused in (
        lambda: manifests.build(PlannedRun("run", "default", resolved, found), "uid"),
        lambda: megatron_arguments(resolved, found, "run"),
    ):
        with pytest.raises(InvalidRecipeError) as error:
            refused()
        assert reason in str(error.value)
        assert "megatron args" not in str(error.value)
    assert entry_of(engine="bridge").obstacle == "it is"


def entry_of(**fields: Any) -> Entry:
    return Entry.model_validate(
        {"name": "a", "family": "a", "description": "a", "source": "a", "plannedOnly": "it is"} | fields
    )


def test_an_entry_of_the_own_loop_cannot_be_planned_only() -> None:
    with pytest.raises(ValueError, match="plannedOnly needs engine bridge"):
        entry_of(engine="megatron")


def test_an_entry_with_layouts_cannot_be_planned_only() -> None:
    layout = {"accelerators": ["h100-sxm"], "count": 8, "source": "a"}
    with pytest.raises(ValueError, match="plannedOnly is set together with layouts"):
        entry_of(engine="bridge", layouts=[layout])


def test_layers_without_attention_or_feed_forward_part_have_no_parameters_of_it() -> None:
    shape = model_shape(LIBRARY.get("llama3.1-nemotron-ultra-253b").model, Diagnostics())
    assert shape is not None
    h = shape.hidden
    assert layer_parameters(shape, LayerKind(None, None)).total == 0
    assert layer_parameters(shape, LayerKind(None, "dense", ffn=21504)).total == 3 * h * 21504 + h
    attention = 2 * h * h + 2 * h * 8 * 128 + h
    assert layer_parameters(shape, LayerKind("attention", None)).total == attention
    assert max(kind.ffn or 0 for kind in shape.kinds) == 425984


def test_a_list_of_layers_of_another_length_than_the_model_is_refused() -> None:
    model = LIBRARY.get("llama3.3-nemotron-super-49b").model
    short = model.model_copy(update={"heterogeneous_layers": [LayerRun(count=79, ffn_hidden_size=256)]})
    found = Diagnostics()
    assert model_shape(short, found) is None
    assert [str(error) for error in found.errors] == [
        "spec.model.heterogeneousLayers: lists 79 layers, the model has 80; list 80, or set numLayers 79"
    ]


def test_a_mixer_beside_attention_shares_its_norm() -> None:
    """Parameters are those of both mixers, one norm for them and one for the feed-forward part."""
    beside = LIBRARY.get("falcon-h1-7b").model
    shape = model_shape(beside, Diagnostics())
    assert shape is not None
    attention = layer_parameters(shape, LayerKind("attention", None)).total
    mamba = layer_parameters(shape, LayerKind("mamba", None)).total
    dense = layer_parameters(shape, LayerKind(None, "dense")).total
    both = layer_parameters(shape, LayerKind("parallel", "dense")).total
    assert both == attention + mamba + dense - shape.hidden


@pytest.mark.parametrize(("count", "tp"), [(64, 2), (256, 2)])
def test_falcon_h1_keeps_to_what_its_layers_can_be_split_by(resolve: Resolve, count: int, tp: int) -> None:
    """Two groups of states limit TP, unfused attention CP, and its class of layers splits them evenly."""
    found = plan(resolve("falcon-h1-34b", count))
    assert found.tensor_model_parallel_size <= tp
    assert found.context_parallel_size == 1
    assert found.virtual_pipeline_model_parallel_size is None
    assert len(set(found.stage_layers)) == 1


@pytest.mark.parametrize("name", ["falcon-h1-34b", "llama3.3-nemotron-super-49b"])
def test_virtual_stages_are_refused_of_layers_that_are_built_without_them(
    resolve: Resolve, name: str
) -> None:
    sizes = {
        **{"tensorModelParallelSize": 2, "pipelineModelParallelSize": 4},
        "numVirtualStagesPerPipelineRank": 2,
    }
    with pytest.raises(InvalidRecipeError, match="builds these layers without virtual stages"):
        plan(resolve(name, 64, parallelism=sizes))


def test_layers_that_differ_are_counted_one_by_one() -> None:
    """The first half of Super's layers has most of its attention, and most of its parameters."""
    model = LIBRARY.get("llama3.3-nemotron-super-49b").model
    shape = model_shape(model, Diagnostics())
    assert shape is not None
    counted = [layer_parameters(shape, kind).total for kind in shape.kinds]
    embeddings = 2 * 8192 * 128256 + 8192
    assert parameters(shape, 128256) == sum(counted) + embeddings == 49_867_145_216
    assert sum(counted[:40]) > 2 * sum(counted[40:])


def test_unfused_attention_is_not_split_over_context_parallel_ranks(resolve: Resolve) -> None:
    spec: dict[str, Any] = {
        "parallelism": {"contextParallelSize": 2},
        "training": {"attentionBackend": "unfused"},
    }
    with pytest.raises(InvalidRecipeError, match="CP 2 requires a fused kernel of attention"):
        plan(resolve("llama3-8b", 8, **spec))


def test_attention_of_fp32_is_unfused_and_not_split_over_context_parallel_ranks(resolve: Resolve) -> None:
    in_fp32: dict[str, Any] = {"training": {"bf16": False}}
    for training, unfused in ({"bf16": False}, True), ({}, False), ({"fp16": True}, False):
        resolved = resolve("llama3-8b", 8, training=training)
        assert Workload.of(resolved, plan(resolved)).execution.unfused_attention is unfused
    assert plan(resolve("llama3-8b", 8, **in_fp32)).context_parallel_size == 1
    with pytest.raises(InvalidRecipeError, match=r"CP 2 requires a fused kernel .* FP32 .*bf16: true"):
        plan(resolve("llama3-8b", 8, **in_fp32, parallelism={"contextParallelSize": 2}))


def test_norms_over_all_heads_are_split_over_tensor_parallel_ranks() -> None:
    model = LIBRARY.get("minimax-m2").model
    each = model.model_copy(update={"qk_layernorm_of_all_heads": None})
    whole, per_head = (model_shape(m, Diagnostics()) for m in (model, each))
    assert whole is not None
    assert per_head is not None
    layers = model.num_layers or 0
    assert parameters(whole, 1) - parameters(per_head, 1) == layers * ((48 + 8) * 128 - 2 * 128)
    kind = whole.kinds[0]
    assert layer_parameters(whole, kind).tensor - layer_parameters(per_head, kind).tensor == 56 * 128


def test_sizes_that_no_recipe_can_set_are_none_of_its_fields() -> None:
    assert {"heterogeneousLayers", "mambaBesideAttention", "qkLayernormOfAllHeads", "mambaNorm"} <= {
        *Architecture(
            heterogeneous_layers=[],
            mamba_beside_attention=True,
            qk_layernorm_of_all_heads=True,
            mamba_norm=False,
        ).beyond_megatron
    }
