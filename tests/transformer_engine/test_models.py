"""Every native catalog entry is the model that its plan describes, with the layers that a GPU run has."""

import pytest
from cases import Case, case, specs
from meta_model import layer_types, parameters, whole
from stages import Megatron

ENTRIES = {
    str(spec["recipe"]): name
    for name, spec in reversed(specs().items())
    if "recipe" in spec and spec["accelerator"]["type"] not in ("cpu", "cpu-simulated")
}
"""Recipe -> its first case on GPUs."""


def _layers(run: Case) -> set[str]:
    """The modules that a model of this kind must have."""
    m = run.resolved.model
    found = {"TEDotProductAttention", "TERowParallelLinear"}
    if m.num_experts:
        found |= {"TEGroupedMLP", "TEColumnParallelGroupedLinear", "TERowParallelGroupedLinear", "TopKRouter"}
    found.add("MLASelfAttention" if m.multi_latent_attention else "SelfAttention")
    if m.mtp_num_layers:
        found.add("MultiTokenPredictionLayer")
    return found


@pytest.mark.parametrize("recipe", ENTRIES)
def test_the_whole_model_has_the_parameters_of_its_plan(megatron: Megatron, recipe: str) -> None:
    run = case(ENTRIES[recipe])
    model = whole(megatron, run.words)
    assert parameters(model) == run.plan.parameters_padded
    assert _layers(run) - layer_types(model) == set()


def test_the_entries_cover_every_kind_of_layer() -> None:
    models = [case(name).resolved.model for name in ENTRIES.values()]
    kinds = {
        "dense": any(not m.num_experts for m in models),
        "experts": any(m.num_experts and m.moe_grouped_gemm for m in models),
        "latent attention": any(m.multi_latent_attention for m in models),
        "multi-token prediction": any(m.mtp_num_layers for m in models),
    }
    assert [kind for kind, there in kinds.items() if not there] == []
