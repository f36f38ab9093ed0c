"""What each kind of group communicates in a step, and over which level."""

from collections.abc import Callable

import pytest
from megatron_operator import planner
from megatron_operator.api.communication_status import GroupCommunication
from megatron_operator.api.status import Plan
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


def test_a_group_across_pods_of_less_than_a_node_takes_the_time_of_the_network(resolve: Resolve) -> None:
    sizes = {"expertModelParallelSize": 8, "tensorModelParallelSize": 1, "pipelineModelParallelSize": 1}
    whole, parts = (
        groups(planner.plan(resolve("qwen3-30b-a3b", 8, per_node=per_node, parallelism=sizes)))["EP"]
        for per_node in (8, 4)
    )
    assert (whole.level, parts.level) == ("node", "network")
    assert parts.seconds > 2 * whole.seconds


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


BLOCK = "example.com/block"
LAYOUT = {"tensorModelParallelSize": 4, "contextParallelSize": 2, "pipelineModelParallelSize": 4}


def crossings(plan: Plan, group: str) -> dict[str, tuple[int, float]]:
    return {each.level: (each.bytes, each.seconds) for each in groups(plan)[group].crossings or ()}


def described(resolve: Resolve, rack: dict[str, float], block: dict[str, float]) -> Plan:
    """llama3-70b at 8,192 tokens: TP 4 x CP 2 x DP 2 x PP 4, 256 micro batches of one sample."""
    domains = {RACK: {"nodes": 2} | rack, BLOCK: {"nodes": 4} | block}
    profile = {"topology": [RACK, BLOCK], "topologyDomains": domains}
    training = {"microBatchSize": 1, "globalBatchSize": 512}
    resolved = resolve("llama3-70b", 64, profile=profile, parallelism=LAYOUT, training=training)
    return planner.plan(resolved)


def test_bytes_and_seconds_that_cross_racks_and_blocks(resolve: Resolve) -> None:
    plan = described(resolve, {"oversubscription": 4}, {"uplinkGBps": 5})
    # 4 x (8,192 / 2 tokens) x 8,192 / 4 bytes of each of 256 micro batches, forward and backward.
    sent = 4 * 4096 * 8192 // 4 * 256
    # A stage has 16 ranks. It fills a rack, so each of its ranks sends out of it; a block has two, of which
    # one sends. 80 % of the bandwidth is reached: of 50 GB/s out of a node, a quarter of it out of a rack.
    assert crossings(plan, "PP") == {
        "node": (sent, pytest.approx(sent / 40e9)),
        RACK: (sent, pytest.approx(sent / 10e9)),
        BLOCK: (sent // 2, pytest.approx(sent / 2 / 4e9)),
    }
    assert groups(plan)["PP"].bytes == sent
    assert groups(plan)["PP"].seconds == pytest.approx(sent / 2 / 4e9), "the slowest of them"


def test_a_group_within_a_rack_crosses_nodes_alone(resolve: Resolve) -> None:
    data = groups(described(resolve, {"oversubscription": 4}, {}))["DP"]
    assert (data.size, data.level) == (4, RACK)
    [crossing] = data.crossings or ()
    assert crossing.level == "node"
    assert data.bytes is not None
    # Four ranks of a group, two in each node: its ring leaves a node by one of two NICs.
    assert crossing.bytes == pytest.approx(data.bytes / 2, abs=1)
    assert crossing.seconds == pytest.approx(data.bytes / 2 / 40e9)
    # 70.55 billion parameters on 16 ranks of TP and PP; of their gradients (4 bytes) and weights (2) 3/4.
    assert data.bytes == pytest.approx(70.55e9 / 16 * (4 + 2) * 3 / 4, rel=0.05)


def test_uplinks_as_fast_as_the_network_cost_nothing(resolve: Resolve) -> None:
    plain = planner.plan(
        resolve("llama3-70b", 64, parallelism=LAYOUT, training={"microBatchSize": 1, "globalBatchSize": 512})
    )
    free = described(resolve, {}, {})
    assert free.expected == plain.expected
    assert [(each.group, each.seconds) for each in free.communication or ()] == [
        (each.group, each.seconds) for each in plain.communication or ()
    ]
    assert crossings(plain, "PP").keys() == {"node"}
    assert crossings(free, "PP").keys() == {"node", RACK, BLOCK}


@pytest.mark.parametrize(
    ("rack", "block", "note"),
    [
        (
            {"uplinkGBps": 400},
            {"uplinkGBps": 400},
            "topologyDomains.example.com/rack.uplinkGBps 400 is above the 50 of the network within it",
        ),
        (
            {"oversubscription": 2},
            {"uplinkGBps": 40},
            "topologyDomains.example.com/block.uplinkGBps 40 is above the 25 of the network within it",
        ),
        ({"uplinkGBps": 50}, {"uplinkGBps": 25}, None),
    ],
)
def test_the_first_uplink_above_the_network_of_the_accelerator_is_noted(
    rack: dict[str, float], block: dict[str, float], note: str | None, resolve: Resolve
) -> None:
    """Such as one in Gbit/s: it is planned as the network within its domains."""
    plan = described(resolve, rack, block)
    found = [each for each in plan.notes if "uplinkGBps" in each]
    expected = f"platform.accelerators.h100-sxm.{note}, and has no effect"
    assert [each.partition(";")[0] for each in found] == ([expected] if note else [])
    if rack == {"uplinkGBps": 400}:
        assert plan.expected == described(resolve, {}, {}).expected


def test_an_exchange_of_experts_leaves_a_rack_with_the_share_of_the_peers_elsewhere(resolve: Resolve) -> None:
    profile = {"topology": [RACK], "topologyDomains": {RACK: {"nodes": 2, "uplinkGBps": 10}}}
    layout = {"tensorModelParallelSize": 1, "expertModelParallelSize": 32, "pipelineModelParallelSize": 1}
    resolved = resolve("qwen3-30b-a3b", 32, profile=profile, parallelism=layout)
    exchange = groups(planner.plan(resolved))["EP"]
    assert exchange.bytes is not None
    # Of 31 peers 16 are in the other rack, 24 in other nodes; half and three quarters, as the model rounds.
    assert {each.level: each.bytes / exchange.bytes for each in exchange.crossings or ()} == {
        "node": pytest.approx(0.75),
        RACK: pytest.approx(0.5),
    }
    assert exchange.seconds == pytest.approx(exchange.bytes / 2 / 8e9)


def test_a_required_level_is_the_farthest_that_a_group_spans(resolve: Resolve) -> None:
    profile = {"topology": [RACK, BLOCK], "topologyDomains": {BLOCK: {"nodes": 64}}}
    scheduling = {"topology": [RACK, BLOCK], "requiredTopology": RACK}
    plan = planner.plan(resolve("llama3-70b", 64, profile=profile, scheduling=scheduling))
    assert groups(plan)["PP"].level == RACK, "the block has it too, but all of the run is in one rack"
