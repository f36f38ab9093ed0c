"""What Falcon-H1's layers compute again, and the operations that a step of it counts."""

from types import SimpleNamespace

import pytest
from megatron_operator import catalog
from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.planner.estimate.model_shape import model_shape
from megatron_operator.planner.estimate.parameters import flops_per_token
from megatron_trainer.bridge import falcon_h1


@pytest.mark.parametrize(
    ("granularity", "method", "layers", "expected"),
    [
        (None, None, None, []),
        ("selective", None, None, []),
        ("full", "uniform", 1, [1, 2, 3, 4, 5, 6, 7, 8]),
        ("full", "block", 1, [1, 5]),
        ("full", "block", 3, [1, 2, 3, 5, 6, 7]),
    ],
)
def test_layers_are_computed_again_as_in_each_stage_of_megatron(
    granularity: str | None, method: str | None, layers: int | None, expected: list[int]
) -> None:
    config = SimpleNamespace(
        num_layers=8,
        pipeline_model_parallel_size=2,
        recompute_granularity=granularity,
        recompute_method=method,
        recompute_num_layers=layers,
    )
    assert [number for number in range(1, 9) if falcon_h1.recomputes(config, number)] == expected


def test_a_step_counts_the_operations_of_the_plan() -> None:
    model, tp, batch, length = catalog.load().get("falcon-h1-34b").model, 2, 3, 8192
    shape = model_shape(model, Diagnostics())
    assert shape is not None
    built = SimpleNamespace(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.ffn_hidden_size,
        seq_length=length,
        num_attention_heads=model.num_attention_heads,
        num_query_groups=model.num_query_groups,
        kv_channels=model.kv_channels,
        mamba_num_heads=model.mamba_num_heads,
        mamba_head_dim=model.mamba_head_dim,
        mamba_num_groups=model.mamba_num_groups,
        mamba_state_dim=model.mamba_state_dim,
        vocab_size=model.vocab_size,
        make_vocab_size_divisible_by=128,
        tensor_model_parallel_size=tp,
    )
    of_plan = batch * length * flops_per_token(shape, length, shape.padded_vocab(tp))
    assert falcon_h1.operations(built, batch) == of_plan
