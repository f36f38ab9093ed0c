"""The page draws the groups that Megatron forms."""

import pytest
from megatron.core.parallel_state import RankGenerator
from megatron_operator.api.status import Plan
from megatron_operator.ui.placement import groups_of, position

from testkit.example_runs import training_run

SIZES = (
    "tensor_model_parallel_size",
    "context_parallel_size",
    "data_parallel_size",
    "pipeline_model_parallel_size",
)


@pytest.mark.parametrize(("tp", "cp", "dp", "pp"), [(2, 1, 4, 2), (4, 2, 2, 2), (1, 3, 2, 4), (8, 1, 1, 1)])
def test_groups_of_every_rank_are_megatrons(tp: int, cp: int, dp: int, pp: int) -> None:
    made = RankGenerator(tp=tp, ep=1, dp=dp, pp=pp, cp=cp, order="tp-cp-ep-dp-pp")
    plan = Plan.model_validate(training_run("x")["status"]["plan"])
    plan = plan.model_copy(update=dict(zip(SIZES, (tp, cp, dp, pp), strict=True)))
    for rank in range(tp * cp * dp * pp):
        drawn = dict(groups_of(plan, rank))
        for name in ("tp", "cp", "dp", "pp"):
            [group] = [each for each in made.get_ranks(name) if rank in each]
            assert drawn.get(name.upper(), (rank,)) == tuple(group)


@pytest.mark.parametrize(("etp", "ep", "edp", "pp"), [(1, 4, 2, 2), (2, 2, 2, 2), (1, 8, 1, 1)])
def test_the_expert_coordinate_is_megatrons(etp: int, ep: int, edp: int, pp: int) -> None:
    made = RankGenerator(tp=etp, ep=ep, dp=edp, pp=pp, cp=1, order="tp-cp-ep-dp-pp")
    plan = Plan.model_validate(training_run("x")["status"]["plan"])
    changes = {"expert_tensor_parallel_size": etp, "expert_model_parallel_size": ep}
    for group in made.get_ranks("ep"):
        found = [position(plan.model_copy(update=changes), rank).ep for rank in group]
        assert found == list(range(ep))
