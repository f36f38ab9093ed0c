"""How many pods of a run fit, by the scheduler's rules."""

from typing import Any

import pytest
from megatron_operator.api.labels import LABEL_RECIPE, LABEL_ROLE
from megatron_operator.api.times import timestamp
from megatron_operator.lifecycle import capacity
from megatron_operator.lifecycle.capacity import (
    LONGEST_CLAIM,
    ClusterUsage,
    claimed_by_others,
    fitting_pods,
    pod_requests,
)
from megatron_operator.lifecycle.growths import LONGEST_GROWTH, Growths
from megatron_operator.lifecycle.status_builder import RecipeKey

GPU = "nvidia.com/gpu"
NOW = 1_800_000_000.0


def node(name: str, gpus: int = 8, ready: str = "True", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "gpu": "h100"}},
        "spec": spec,
        "status": {
            "allocatable": {GPU: str(gpus), "cpu": "64", "memory": "512Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def pod(uid: str, on: str | None, gpus: int = 8, phase: str = "Running") -> dict[str, Any]:
    resources = {"requests": {GPU: str(gpus), "cpu": "500m"}}
    return {
        "metadata": {"uid": uid, "labels": {LABEL_RECIPE: "run"}},
        "spec": {"nodeName": on, "containers": [{"resources": resources}]},
        "status": {"phase": phase},
    }


def cluster(nodes: list[dict[str, Any]], pods: list[dict[str, Any]]) -> ClusterUsage:
    usage = ClusterUsage()
    for each in nodes:
        usage.add_node(each)
    for each in pods:
        usage.add_pod(each)
    return usage


def template(gpus: int = 4, terms: list[Any] | None = None, **spec: Any) -> dict[str, Any]:
    container = {"resources": {"requests": {"cpu": "2"}, "limits": {GPU: str(gpus)}}}
    if terms is not None:
        required = {"nodeSelectorTerms": [{"matchExpressions": terms}]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return {"spec": {"containers": [container], **spec}}


def test_resources_of_other_pods_are_not_free_and_those_of_the_run_are() -> None:
    nodes = [node("a"), node("b"), node("c")]
    pods = [pod("own", "a"), pod("other", "b", gpus=3), pod("done", "c", phase="Succeeded")]
    assert fitting_pods(cluster(nodes, pods), template(), {"own"}) == {"a": 2, "b": 1, "c": 2}
    assert fitting_pods(cluster(nodes, pods), template(), set()) == {"b": 1, "c": 2}


def test_unbound_pods_use_no_resources() -> None:
    assert fitting_pods(cluster([node("a")], [pod("waits", None)]), template(), set()) == {"a": 2}


def waiting(
    run: str, pods: int, role: str = "trainer", seconds: float = 60, **spec: Any
) -> list[dict[str, Any]]:
    """A gang that has waited for `seconds`."""
    created = timestamp(NOW - seconds)
    gang = [pod(f"{run}-{number}", None, phase="Pending") for number in range(pods)]
    for each in gang:
        labels = {LABEL_RECIPE: run, LABEL_ROLE: role}
        each["metadata"] |= {"namespace": "research", "labels": labels, "creationTimestamp": created}
        each["spec"] |= spec
    return gang


@pytest.mark.parametrize(
    ("others", "claimed"),
    [
        ([], 0),
        (waiting("two", 2), 2),
        # All of it fits only once the run has given up its own node.
        (waiting("three", 3), 3),
        (waiting("four", 4), 0),
        (waiting("two", 2) + waiting("one", 1), 3),
        (waiting("elsewhere", 1, nodeSelector={"gpu": "b200"}), 0),
        (waiting("import", 1, role="import"), 0),
        (waiting("prepare", 1, role="prepare", containers=[{"resources": {"requests": {"cpu": "4"}}}]), 0),
        (waiting("cpus", 1, containers=[{"resources": {"requests": {"cpu": "4"}}}]), 0),
        (waiting("long", 2, seconds=LONGEST_CLAIM), 0),
        (waiting("long", 1, seconds=LONGEST_CLAIM) + waiting("new", 1), 1),
    ],
    ids=[
        "nobody",
        "a-gang",
        "needs-the-runs-own",
        "does-not-fit",
        "two-gangs",
        "other-nodes",
        "an-import",
        "a-preparation",
        "trainers-without-accelerators",
        "waits-too-long",
        "one-of-two-waits-too-long",
    ],
)
def test_places_that_a_waiting_gang_would_take_are_claimed(others: list[Any], claimed: int) -> None:
    seen = cluster([node("a"), node("b"), node("c")], [pod("own", "a"), *others])
    fits = fitting_pods(seen, template(8), {"own"})
    assert fits == {"a": 1, "b": 1, "c": 1}
    assert claimed_by_others(seen, template(8), fits, {"own"}, NOW) == claimed


def test_a_gang_claims_as_long_as_its_newest_pod_is_new() -> None:
    """A pod of it was replaced: the scheduler tries the gang again."""
    old, new = waiting("two", 2, seconds=LONGEST_CLAIM)[:1], waiting("two", 2)[1:]
    seen = cluster([node("a"), node("b"), node("c")], [pod("own", "a"), *new, *old])
    fits = fitting_pods(seen, template(8), {"own"})
    assert claimed_by_others(seen, template(8), fits, {"own"}, NOW) == 2


def test_a_gang_that_needs_nodes_that_the_run_cannot_use_claims_the_others() -> None:
    """It waits for three nodes, one of which is none of the run's."""
    nodes = [node("a"), node("b"), node("c")]
    nodes[2]["metadata"]["labels"]["gpu"] = "h200"
    own = template(8, terms=[{"key": "gpu", "operator": "In", "values": ["h100"]}])
    seen = cluster(nodes, [pod("own", "a"), *waiting("three", 3)])
    fits = fitting_pods(seen, own, {"own"})
    assert fits == {"a": 1, "b": 1}
    assert claimed_by_others(seen, own, fits, {"own"}, NOW) == 2


@pytest.mark.parametrize(("racks", "claimed"), [("xxy", 2), ("xyz", 0)])
def test_a_gang_that_no_rack_has_room_for_claims_nothing(racks: str, claimed: int) -> None:
    nodes = [node(name) for name in "abc"]
    for each, rack in zip(nodes, racks, strict=True):
        each["metadata"]["labels"]["rack"] = rack
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "rack"}]}
    gang = waiting("two", 2, affinity={"podAffinity": required})
    seen = cluster(nodes, gang)
    fits = fitting_pods(seen, template(8), set())
    assert claimed_by_others(seen, template(8), fits, set(), NOW) == claimed


def test_nodes_are_counted_once_for_all_gangs_of_equal_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    gangs = [each for number in range(20) for each in waiting(f"run-{number}", 2)]
    for number, each in enumerate(gangs):
        # Each gang keeps its own pods apart; where they fit is the same.
        each["spec"]["affinity"] = {"podAntiAffinity": {"name": number // 2}}
    nodes = [node("a"), node("b"), node("c", gpus=0)]
    seen = cluster(nodes, gangs)
    fits = fitting_pods(seen, template(8), set())
    counted: list[str] = []
    is_schedulable = capacity.is_schedulable

    def counting(of: Any, spec: Any) -> bool:
        counted.append(of["metadata"]["name"])
        return is_schedulable(of, spec)

    monkeypatch.setattr(capacity, "is_schedulable", counting)
    assert claimed_by_others(seen, template(8), fits, set(), NOW) == 40
    assert counted == ["a", "b"], "nodes that the run cannot use are not counted"


def test_of_a_waiting_pod_only_what_decides_where_it_fits_is_kept() -> None:
    pods = waiting("two", 2, containers=[{"env": [{"name": "A", "value": "secret"}]}])
    [gang] = cluster([], pods).waiting.values()
    assert gang.uids == {"two-0", "two-1"}
    assert "secret" not in gang.spec()
    assert gang.placement.keys() == {"nodeSelector", "affinity", "tolerations"}


def test_a_runs_own_waiting_pods_claim_nothing() -> None:
    gang = waiting("run", 2)
    seen = cluster([node("a"), node("b")], gang)
    own = {each["metadata"]["uid"] for each in gang}
    fits = fitting_pods(seen, template(8), own)
    assert claimed_by_others(seen, template(8), fits, own, NOW) == 0


@pytest.mark.parametrize(("present", "claimed"), [(0, 3), (1, 2), (3, 0)])
def test_places_of_pods_that_a_growing_run_will_have_are_claimed(present: int, claimed: int) -> None:
    """A growing run will have three pods; while its old one is bound, that has its place."""
    names = ["a", "b", "c", "d"]
    bound = [pod(f"other-{number}", names[number + 1]) for number in range(present)]
    for each in bound:
        each["metadata"] |= {
            "namespace": "research",
            "labels": {LABEL_RECIPE: "other", LABEL_ROLE: "trainer"},
        }
    seen = cluster([node(name) for name in names], [pod("own", "a"), *bound])
    growths = Growths()
    growths.add(RecipeKey("research", "other"), template(8), 3, NOW)
    growing = growths.of_others(RecipeKey("research", "run"), seen, NOW)
    fits = fitting_pods(seen, template(8), {"own"})
    assert claimed_by_others(seen, template(8), fits, {"own"}, NOW, growing) == claimed


def test_a_growth_claims_nothing_of_itself_nor_once_it_is_forgotten_or_old() -> None:
    run, other = RecipeKey("research", "run"), RecipeKey("research", "other")
    growths, seen = Growths(), cluster([], [])
    growths.add(run, template(8), 3, NOW)
    assert growths.of_others(run, seen, NOW) == []
    [gang] = growths.of_others(other, seen, NOW + LONGEST_GROWTH - 1)
    assert len(gang.uids) == 3
    assert growths.of_others(other, seen, NOW + LONGEST_GROWTH) == []
    growths.add(run, template(8), 3, NOW)
    growths.forget(run)
    assert growths.of_others(other, seen, NOW) == []


@pytest.mark.parametrize(
    "unschedulable",
    [
        node("a", ready="Unknown"),
        node("a", ready="False"),
        node("a", unschedulable=True),
        node("a", taints=[{"key": "reserved", "effect": "NoSchedule"}]),
        node("a", gpus=3),
    ],
)
def test_unschedulable_nodes_are_left_out(unschedulable: dict[str, Any]) -> None:
    assert fitting_pods(cluster([unschedulable, node("b")], []), template(), set()) == {"b": 2}


def test_tolerated_and_preferred_taints_do_not_exclude_a_node() -> None:
    taints = [
        {"key": GPU, "effect": "NoSchedule"},
        {"key": "pool", "value": "research", "effect": "NoExecute"},
        {"key": "busy", "effect": "PreferNoSchedule"},
    ]
    tolerations = [
        {"key": GPU, "operator": "Exists"},
        {"key": "pool", "operator": "Equal", "value": "research", "effect": "NoExecute"},
    ]
    tolerant = template(tolerations=tolerations)
    assert fitting_pods(cluster([node("a", taints=taints)], []), tolerant, set()) == {"a": 2}
    other = [{"key": "pool", "value": "web", "effect": "NoExecute"}]
    assert fitting_pods(cluster([node("a", taints=other)], []), tolerant, set()) == {}


def test_nodes_that_the_affinity_excludes_are_left_out() -> None:
    terms = [
        {"key": "gpu", "operator": "In", "values": ["h100"]},
        {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["a"]},
    ]
    other = node("c")
    other["metadata"]["labels"]["gpu"] = "a100"
    assert fitting_pods(cluster([node("a"), node("b"), other], []), template(terms=terms), set()) == {"b": 2}


def test_every_resource_must_fit() -> None:
    large = pod("cpu", "a", gpus=0)
    large["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "61"
    assert fitting_pods(cluster([node("a")], [large]), template(), set()) == {"a": 1}


def test_pod_requests_include_the_largest_init_container_and_sidecars() -> None:
    spec = {
        "containers": [{"resources": {"requests": {"cpu": "1"}}}, {"resources": {"limits": {"cpu": "1"}}}],
        "initContainers": [
            {"resources": {"requests": {"cpu": "3"}}},
            {"restartPolicy": "Always", "resources": {"requests": {"cpu": "500m"}}},
        ],
        "overhead": {"cpu": "250m"},
    }
    assert pod_requests(spec)["cpu"] == 3_750_000_000
