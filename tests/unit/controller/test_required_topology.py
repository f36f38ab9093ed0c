"""Runs whose pods must share a rack: they grow, move and start only where one rack has room for all pods."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from megatron_operator.api.platform import Maintenance
from megatron_operator.api.recovery_status import NodeMaintenance, RecoveryStatus
from megatron_operator.api.times import timestamp
from megatron_operator.controller.api_resources import NODES, Resource
from megatron_operator.controller.capacity_finder import CapacityFinder
from megatron_operator.controller.node_watch import NodeWatch
from megatron_operator.lifecycle.observation import Limits
from megatron_operator.lifecycle.recovery_observation import observe
from megatron_operator.lifecycle.recovery_policy import DOMAIN_PATIENCE, ChangeDomain, decide
from megatron_operator.lifecycle.snapshot import RunSnapshot
from megatron_operator.lifecycle.status_builder import RecipeKey, StatusBuilder
from megatron_operator.manifests.kueue import REQUIRED_TOPOLOGY
from megatron_operator.manifests.node_avoidance import avoiding_domains

from tests.unit.controller.test_growing_runs import GPU, LIMITS, NOW, SPEC, AnyCount, ShrunkRun, pod

RACK = "topology.kubernetes.io/rack"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
SPEC_IN_RACK = SPEC | {"affinity": {"podAffinity": {REQUIRED: [{"topologyKey": RACK}]}}}
RUN = RecipeKey("research", "one")
TAINT = {"key": "karpenter.sh/disrupted"}
READY: dict[str, Any] = {
    "allocatable": {GPU: "8", "pods": "110"},
    "conditions": [{"type": "Ready", "status": "True"}],
}


class Racks:
    """An API server with nodes in racks; one pod of the run is on each node of `bound`."""

    def __init__(self, racks: dict[str, str | None], bound: str = "", leaving: str = "") -> None:
        self.nodes = [
            {
                "metadata": {"name": name, "labels": {} if rack is None else {RACK: rack}},
                "spec": {"taints": [TAINT]} if name in leaving else {},
                "status": READY,
            }
            for name, rack in racks.items()
        ]
        self.bound = bound
        self.waiting: list[dict[str, Any]] = []

    async def pages(
        self, resource: Resource, _namespace: str | None, **_selectors: str
    ) -> AsyncIterator[list[Any]]:
        placed = [pod("one", name) for name in self.bound]
        yield self.nodes if resource is NODES else placed + self.waiting

    async def versioned_pages(
        self, _resource: Resource, _namespace: None
    ) -> AsyncIterator[tuple[str, list[Any]]]:
        yield "1", self.nodes


def finder(racks: Racks, watch: NodeWatch | None = None) -> CapacityFinder:
    api: Any = racks
    planning: Any = AnyCount()
    return CapacityFinder(api, planning, watch, allowed=True)


def job(pods: int, spec: dict[str, Any] = SPEC_IN_RACK, **labels: str) -> dict[str, Any]:
    template = {"spec": spec}
    replicas: dict[str, Any] = {"Master": {"replicas": 1, "template": template}}
    if pods > 1:
        replicas["Worker"] = {"replicas": pods - 1, "template": template}
    job_spec = {"nprocPerNode": "8", "pytorchReplicaSpecs": replicas}
    return {"kind": "PyTorchJob", "metadata": {"labels": labels}, "spec": job_spec}


@pytest.mark.parametrize(
    ("racks", "larger"),
    [
        ({"a": "r1", "b": "r2"}, None),
        ({"a": "r1", "b": None}, None),
        ({"a": "r1", "b": "r1"}, 16),
        ({"a": "r1", "b": "r2", "c": "r2"}, 16),
    ],
    ids=["the-free-node-is-in-another-rack", "it-has-no-rack", "in-the-runs-own", "another-rack-has-two"],
)
def test_a_run_grows_only_if_one_rack_has_room_for_all_of_its_pods(
    racks: dict[str, str | None], larger: int | None
) -> None:
    run = ShrunkRun("one", "a", finder(Racks(racks, bound="a")))
    run.snapshot = RunSnapshot(NOW, job(1), (pod("one", "a"),))
    assert asyncio.run(run.larger()) == larger


def test_a_run_that_grows_into_another_rack_is_not_kept_out_of_it_by_what_was_free_at_its_start() -> None:
    run = ShrunkRun("one", "a", finder(Racks({"a": "r1", "b": "r2", "c": "r2"}, bound="a")))
    run.snapshot = RunSnapshot(NOW, avoiding_domains(job(1), RACK, ["r2"]), (pod("one", "a"),))
    assert asyncio.run(run.larger()) == 16


@pytest.mark.parametrize(("bound", "fits"), [("a", 8), ("", 16)])
def test_a_run_that_waits_has_the_room_of_the_rack_that_its_pods_are_in(bound: str, fits: int) -> None:
    run = ShrunkRun("one", "a", finder(Racks({"a": "r1", "b": "r2", "c": "r2"}, bound=bound)))
    run.status.set_recovery(elastic=None, waiting_since=timestamp(NOW))
    waits = pod("one", "a")
    waits["metadata"] |= {"uid": "waits"}
    waits["spec"] = SPEC_IN_RACK
    run.snapshot = RunSnapshot(NOW, job(3), (*(pod("one", name) for name in bound), waits))
    found = asyncio.run(run.finder.find(run.status, run.snapshot, LIMITS, Maintenance())).elastic
    assert found is not None
    assert found.fits == fits


def waiting_pod(run: str) -> dict[str, Any]:
    found = pod(run, "")
    found["metadata"] |= {"uid": f"waits-{run}", "creationTimestamp": timestamp(NOW)}
    found["spec"], found["status"] = SPEC_IN_RACK, {"phase": "Pending"}
    return found


async def in_another_domain(racks: Racks, bound: str = "a", **labels: str) -> bool:
    """Whether a run of two pods, of which one waits, has room in another rack."""
    run = ShrunkRun("one", "a", finder(racks))
    run.status.set_recovery(elastic=None, waiting_since=timestamp(NOW))
    pods = (*(pod("one", name) for name in bound), waiting_pod("one"))
    run.snapshot = RunSnapshot(NOW, avoiding_domains(job(2, **labels), RACK, ["r2"]), pods)
    return (await run.finder.find(run.status, run.snapshot, LIMITS, Maintenance())).in_another_domain


@pytest.mark.parametrize(
    ("racks", "expected"),
    [
        ({"a": "r1", "c": "r2", "d": "r2"}, True),
        ({"a": "r1", "c": "r2", "d": "r3"}, False),
        ({"a": "r1", "b": "r1", "c": "r2", "d": "r2"}, False),
        ({"a": "r1", "c": None, "d": None}, False),
    ],
    ids=["another-rack-has-room", "each-has-room-for-one", "its-own-has-room", "the-others-have-no-rack"],
)
async def test_a_run_that_waits_for_its_rack_has_room_in_another_that_has_it_for_all(
    racks: dict[str, str | None], expected: bool
) -> None:
    assert await in_another_domain(Racks(racks, bound="a")) == expected


async def test_a_run_in_a_queue_has_no_other_rack() -> None:
    racks = Racks({"a": "r1", "c": "r2", "d": "r2"}, bound="a")
    assert not await in_another_domain(racks, **{"kueue.x-k8s.io/queue-name": "team"})


@pytest.mark.parametrize(
    ("racks", "expected"),
    [
        ({"a": "r1", "c": "r2", "d": "r2"}, True),
        ({"a": "r1", "b": "r1", "c": "r2", "d": "r2"}, False),
        ({"a": "r1", "c": "r2"}, False),
    ],
    ids=["only-the-avoided-one-has-room", "another-has-too", "none-has-room-for-all"],
)
async def test_a_run_without_a_place_has_another_rack_where_its_job_avoids_the_only_one_with_room(
    racks: dict[str, str | None], expected: bool
) -> None:
    assert await in_another_domain(Racks(racks), bound="") == expected


async def test_an_avoided_rack_for_which_another_run_waits_has_no_room() -> None:
    racks = Racks({"a": "r1", "c": "r2", "d": "r2"})
    racks.waiting = [waiting_pod("two")]
    assert not await in_another_domain(racks, bound="")


async def test_a_rack_for_which_another_run_waits_has_no_room() -> None:
    racks = Racks({"a": "r1", "c": "r2", "d": "r2"}, bound="a")
    racks.waiting = [waiting_pod("two")]
    assert not await in_another_domain(racks)


@pytest.mark.parametrize(("free", "room"), [("r1", 1), ("r2", 0)])
def test_a_run_has_room_to_move_to_in_its_own_rack_alone(free: str, room: int) -> None:
    async def scenario() -> int | None:
        racks: Any = Racks({"a": "r1", "c": free}, bound="a", leaving="a")
        watch = NodeWatch(racks, lambda _run: None)
        await watch.refresh()
        metadata = {"name": "one", "namespace": "research", "uid": "one", "generation": 1}
        status = StatusBuilder.of({"metadata": metadata, "spec": {}}, NOW)
        entry = NodeMaintenance(sign="node taint x", time=timestamp(NOW))
        status.set(recovery=RecoveryStatus(maintenance={"a": entry}))
        snapshot = RunSnapshot(NOW, job(1), (pod("one", "a"),))
        limits = Limits(max_restarts=3, rendezvous_timeout=60, avoid_after=2)
        found = (await finder(racks, watch).find(status, snapshot, limits, Maintenance())).room
        return None if found is None else found.pods

    assert asyncio.run(scenario()) == room


def avoided_racks(made: Any) -> list[Any]:
    worker = made["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    terms = worker["affinity"].get("nodeAffinity", {}).get(REQUIRED, {}).get("nodeSelectorTerms", [])
    return [expression for term in terms for expression in term["matchExpressions"]]


@pytest.mark.parametrize(
    ("racks", "avoided"),
    [
        ({"a": "r1", "b": "r2", "c": "r2"}, ["r1"]),
        ({"a": "r1", "b": "r2"}, []),
        ({"a": "r1", "b": "r1", "c": "r2", "d": "r2"}, []),
    ],
    ids=["one-rack-has-room-for-one-of-two", "no-rack-has-room-for-all", "each-has"],
)
def test_a_new_job_avoids_racks_in_which_only_some_of_its_pods_have_room(
    racks: dict[str, str | None], avoided: list[str]
) -> None:
    made = asyncio.run(finder(Racks(racks)).without_small_domains(RUN, job(2)))
    expected = [{"key": RACK, "operator": "NotIn", "values": avoided}] if avoided else []
    assert avoided_racks(made) == expected


def test_a_job_that_is_created_again_avoids_the_rack_that_its_former_pods_leave() -> None:
    former = Racks({"a": "r1", "c": "r2", "d": "r2"}, bound="a")
    assert avoided_racks(asyncio.run(finder(former).without_small_domains(RUN, job(2)))) == [
        {"key": RACK, "operator": "NotIn", "values": ["r1"]}
    ]


async def test_a_job_that_waits_for_a_rack_is_created_again_for_one_that_it_avoids_and_that_became_free() -> (
    None
):
    made: Any = await finder(Racks({"a": "r1", "b": "r2", "c": "r2"})).without_small_domains(RUN, job(2))
    assert [each["values"] for each in avoided_racks(made)] == [["r1"]]
    run = ShrunkRun("one", "a", finder(Racks({"a": "r1", "d": "r1"})))
    run.status.set_recovery(elastic=None, waiting_since=timestamp(NOW - DOMAIN_PATIENCE))
    waiting = [waiting_pod("one") for _ in range(2)]
    for rank, each in enumerate(waiting):
        each["metadata"] |= {"name": f"one-{rank}", "uid": f"waits-{rank}"}
    run.snapshot = RunSnapshot(NOW, made, tuple(waiting))
    found = await run.finder.find(run.status, run.snapshot, LIMITS, Maintenance())
    assert isinstance(decide(observe(run.status, run.snapshot, LIMITS, found)), ChangeDomain)
    again = await run.finder.without_small_domains(RUN, job(2))
    assert avoided_racks(again) == []


def test_a_job_for_which_kueue_chooses_the_rack_avoids_none() -> None:
    queued = job(2)
    for replica in queued["spec"]["pytorchReplicaSpecs"].values():
        replica["template"] = {**replica["template"], "metadata": {"annotations": {REQUIRED_TOPOLOGY: RACK}}}
    racks = Racks({"a": "r1", "b": "r2", "c": "r2"})
    assert avoided_racks(asyncio.run(finder(racks).without_small_domains(RUN, queued))) == []


def test_a_job_whose_pods_need_no_common_rack_avoids_none() -> None:
    free = job(2, SPEC)
    assert (
        asyncio.run(finder(Racks({"a": "r1", "b": "r2", "c": "r2"})).without_small_domains(RUN, free)) is free
    )
