"""The planner's parameters and FLOPs are Megatron's own."""

import pytest
from cases import case, specs
from megatron.training.training import num_floating_point_operations
from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.planner.estimate.model_shape import model_shape
from megatron_operator.planner.estimate.parameters import mtp_parameters
from real_model import sizes
from stages import Megatron

ONE_OF_EACH = {str(spec.get("recipe", name)): name for name, spec in reversed(specs().items())}
"""Recipe -> its first case."""


@pytest.mark.parametrize("name", ONE_OF_EACH.values(), ids=ONE_OF_EACH.keys())
def test_parameters_match_the_real_model(megatron: Megatron, name: str) -> None:
    plan, real = case(name).plan, sizes(megatron, case(name).words)
    shape = model_shape(case(name).resolved.model, Diagnostics())
    assert shape is not None
    padding = plan.parameters_padded - real.prediction - plan.parameters
    assert plan.parameters_padded == real.total + real.prediction
    assert plan.active_parameters == real.active - padding
    assert mtp_parameters(shape).total * shape.mtp_layers == real.prediction
    assert mtp_parameters(shape).active * shape.mtp_layers == real.active_prediction


@pytest.mark.parametrize("name", specs())
def test_flops_match_megatrons_count(megatron: Megatron, name: str) -> None:
    args = megatron.start(case(name).words, case(name).world_size).args
    per_token = num_floating_point_operations(args, 1) / args.seq_length
    assert case(name).plan.flops_per_token == pytest.approx(per_token, rel=1e-12)
