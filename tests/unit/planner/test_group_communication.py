"""What each kind of group communicates in a step, and over which level."""

from collections.abc import Callable

import pytest
from megatron_operator import planner
from megatron_operator.api.status import GroupCommunication, Plan
from megatron_operator.catalog import ResolvedRecipe
from megatron_operator.planner.estimate import hardware
from megatron_operator.planner.estimate.step_time import step_time
from megatron_operator.planner.estimate.workload import Workload

Resolve = Callable[..., ResolvedRecipe]
RACK = "example.com/rack"
REQUIRED = {"topology": [RACK], "requiredTopology": RACK}


def groups(plan: Plan) -> dict[str, GroupCommunication]:
    return {each.group: each for each in plan.communication or ()}


def test_exposed_seconds_are_those_of_the_step(resolve: Resolve) -> None:
    resolved = resolve("llama3-70b", 64)
    plan = planner.plan(resolved)
    on = hardware.get("h100-sxm")
    assert on is not None
    step, found = step_time(Workload.of(resolved, plan), on), groups(plan)
    exposed = {name: each.exposed_seconds for name, each in found.items()}
    assert exposed == {"TP": step.tensor, "CP": step.context, "DP": step.data, "PP": step.pipeline}
    assert found["DP"].exposed_share == step.data / step.total
    assert [each.size for each in found.values()] == [4, 2, 4, 4], "DP 2 with CP 2 have the same parameters"


def test_an_overlap_hides_a_part_of_the_communication_only(resolve: Resolve) -> None:
    overlapped = groups(planner.plan(resolve("llama3-70b", 64)))["DP"]
    neither = {"overlapGradReduce": False, "overlapParamGather": False}
    plain = groups(planner.plan(resolve("llama3-70b", 64, parallelism=neither)))["DP"]
    assert 0 < overlapped.exposed_seconds < overlapped.seconds
    assert plain.exposed_seconds > overlapped.exposed_seconds


@pytest.mark.parametrize(
    ("recipe", "count", "accelerator", "per_node", "scheduling", "levels"),
    [
        ("llama3-70b", 64, "h100-sxm", 8, {}, {"TP": "node", "DP": "network", "PP": "network"}),
        ("llama3-70b", 64, "h100-sxm", 8, REQUIRED, {"TP": "node", "DP": RACK, "PP": RACK}),
        ("deepseek-v3", 256, "gb200", 4, {}, {"EP": "nvlink-domain", "PP": "network"}),
    ],
)
def test_a_group_spans_the_nearest_level_that_has_all_of_its_ranks(
    resolve: Resolve,
    recipe: str,
    count: int,
    accelerator: str,
    per_node: int,
    scheduling: dict[str, object],
    levels: dict[str, str],
) -> None:
    plan = planner.plan(resolve(recipe, count, accelerator, per_node, scheduling=scheduling))
    found = groups(plan)
    assert {name: found[name].level for name in levels} == levels


def test_a_plan_without_an_estimate_of_its_speed_has_no_communication(resolve: Resolve) -> None:
    assert planner.plan(resolve("tiny-gpt", 2, "cpu", 2)).communication is None
