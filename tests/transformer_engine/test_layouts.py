"""Every layout: its ranks hold what the plan's memory counts, and together they save the whole model."""

import math
from dataclasses import dataclass

import pytest
from cases import Case, case, specs
from megatron_operator.planner.estimate.memory import held_parameters
from megatron_operator.planner.estimate.workload import Workload
from meta_checkpoint import first_ranks
from meta_model import chunks, parameters, sharded_tensors, start
from stages import Megatron

ON_GPUS = [n for n, spec in specs().items() if spec["accelerator"]["type"] not in ("cpu", "cpu-simulated")]
_ROUTER_BIAS = "expert_bias"
"""A buffer, no parameter: balances the experts of a model without an auxiliary loss."""


@dataclass(frozen=True)
class Layout:
    """A gang's ranks: the first of each pipeline stage."""

    case: Case
    held: list[int]
    """Parameters of each."""
    saved: dict[str, int]
    """Elements of every tensor that they save of the model, by its key."""


@pytest.fixture(scope="module", params=ON_GPUS)
def layout(request: pytest.FixtureRequest, megatron: Megatron) -> Layout:
    run = case(request.param)
    held, saved = [], {}
    for rank in first_ranks(run):
        models = chunks(start(megatron, run.words, run.world_size, rank))
        held.append(sum(map(parameters, models)))
        tensors = [tensor for model in models for tensor in sharded_tensors(model.sharded_state_dict())]
        saved |= {tensor.key: math.prod(tensor.global_shape) for tensor in tensors}
    return Layout(run, held, saved)


def test_each_stage_holds_the_parameters_that_its_memory_is_planned_for(layout: Layout) -> None:
    planned = Workload.of(layout.case.resolved, layout.case.plan)
    assert layout.held == [sum(held_parameters(planned, stage)) for stage in range(len(layout.held))]


def test_a_checkpoint_has_every_parameter_once(layout: Layout) -> None:
    saved = sum(size for key, size in layout.saved.items() if not key.endswith(_ROUTER_BIAS))
    assert saved == layout.case.plan.parameters_padded
