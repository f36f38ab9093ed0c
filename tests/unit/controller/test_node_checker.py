"""The operator checks nodes that it cordoned, and uncordons those that pass."""

import asyncio
import json
from copy import deepcopy
from typing import Any

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_contract.hardware import Evidence
from megatron_contract.termination import TerminationMessage
from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.api.labels import (
    ANNOTATION_NODE_CHECK,
    LABEL_CORDONED_AT,
    LABEL_NODE_CHECK,
)
from megatron_operator.api.platform import AcceleratorProfile, BadNodes, PlatformConfig
from megatron_operator.api.recovery_status import NodeEvidence
from megatron_operator.api.times import timestamp
from megatron_operator.controller.api_client import ApiError
from megatron_operator.controller.api_resources import BATCH_JOBS, NODES, Resource
from megatron_operator.controller.node_checker import AT_ONCE, NodeChecker
from megatron_operator.lifecycle.cordoning import cordon_patch
from megatron_operator.manifests import node_check

from tests.unit.controller.test_cordoner import NodesInMemory, owner

NOW, HOUR = 1_800_000_000.0, 3600.0
NAMESPACE = "megatron-system"
ON = BadNodes(cordon=True, uncordon_by_check=True)
PROFILE = AcceleratorProfile(node_labels={"gpu": "h100"})


class ApiInMemory(NodesInMemory):
    """The API client's methods for nodes, and for Jobs and pods of the operator's namespace."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        for name, node in self.nodes.items():
            node["metadata"] |= {"uid": f"uid-{name}", "labels": {"gpu": "h100"}, "resourceVersion": "1"}
            node["status"]["capacity"] = {"nvidia.com/gpu": "8"}
        self.jobs: dict[str, Any] = {}
        self.pods: list[Any] = []
        self.error: ApiError | None = None
        """With which it responds to Jobs."""

    async def find(
        self, resource: Any, namespace: Any, labels: str | None = None, fields: str | None = None
    ) -> list[Any]:
        if resource is NODES:
            return deepcopy(await super().find(resource, namespace, labels, fields))
        assert namespace == NAMESPACE
        assert labels is not None
        assert labels.startswith(LABEL_NODE_CHECK)
        return deepcopy(list(self.jobs.values()) if resource is BATCH_JOBS else self.pods)

    async def merge_node(self, node: Any, changes: Any) -> Any:
        changes = {"spec": {}} | deepcopy(changes)
        changes["metadata"] = {"labels": {}, "annotations": {}} | changes["metadata"]
        version, stored = node["metadata"]["resourceVersion"], self.nodes[node["metadata"]["name"]]
        if version != stored["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified")
        await super().merge_node(stored, changes)
        stored["metadata"]["resourceVersion"] = str(int(version) + 1)
        return deepcopy(stored)

    async def create(self, resource: Resource, body: Any) -> Any:
        assert resource is BATCH_JOBS
        if self.error is not None:
            raise self.error
        assert body["metadata"]["name"] not in self.jobs
        self.jobs[body["metadata"]["name"]] = deepcopy(body)

    async def delete(self, resource: Resource, target: Any) -> None:
        assert resource is BATCH_JOBS
        del self.jobs[target["metadata"]["name"]]


class World:
    def __init__(self, size: int = 4) -> None:
        self.api = ApiInMemory(size)
        self.platform: PlatformConfig | None = PlatformConfig(
            image="registry.example/trainer:1", accelerators={"h100": PROFILE}, bad_nodes=ON
        )
        api: Any = self.api
        config: Any = self
        self.checker = NodeChecker(api, config, NAMESPACE)

    async def read(self) -> Any:
        """Stands in for a ConfigSource whose file has become invalid."""
        raise InvalidRecipeError([FieldError("platform.yaml", "is broken", "correct it")])

    async def valid_platform(self) -> PlatformConfig | None:
        return self.platform

    def change(self, **fields: Any) -> None:
        """Change fields of the last valid platform file."""
        assert self.platform is not None
        self.platform = self.platform.model_copy(update=fields)

    def cordon(self, *names: str, at: float = NOW) -> None:
        evidence = NodeEvidence(evidence="DeviceMemory", cause="ECC", time=timestamp(at))
        for name in names:
            patch = cordon_patch(self.api.nodes[name], evidence, at)
            assert patch is not None
            asyncio.run(self.api.merge_node(self.api.nodes[name], patch))

    def step(self, now: float) -> list[str]:
        """Let the operator look; the nodes that are being checked then."""
        asyncio.run(self.checker.step(now))
        names = {node_check.name(name): name for name in self.api.nodes}
        return sorted(names[job] for job in self.api.jobs)

    def end(self, name: str, kind: str, message: str = "") -> None:
        """Let the Job of a node end."""
        job = self.api.jobs[node_check.name(name)]
        job["status"] = {"conditions": [{"type": kind, "status": "True", "reason": "R", "message": "m"}]}
        if message:
            ended = {"exitCode": 138, "message": message}
            self.api.pods = [
                {
                    "metadata": {"name": "pod"},
                    "spec": {},
                    "status": {"containerStatuses": [{"name": "pytorch", "state": {"terminated": ended}}]},
                }
            ]

    def record(self, name: str) -> str:
        return str(self.api.nodes[name]["metadata"]["annotations"].get(ANNOTATION_NODE_CHECK))


@pytest.fixture
def world() -> World:
    return World()


def test_a_node_that_passes_is_uncordoned_and_its_job_is_deleted(world: World) -> None:
    world.cordon("node-1", "node-2")
    assert world.step(NOW + HOUR - 1) == []
    assert world.step(NOW + HOUR) == ["node-1", "node-2"]
    assert world.step(NOW + HOUR + 60) == ["node-1", "node-2"], "they still run"
    world.end("node-1", "Complete")
    assert world.step(NOW + HOUR + 120) == ["node-2"]
    assert world.api.cordoned() == ["node-2"]
    assert LABEL_CORDONED_AT not in world.api.nodes["node-1"]["metadata"]["labels"]


def test_a_node_that_fails_stays_cordoned_with_the_reason_and_is_checked_again_in_an_hour(
    world: World,
) -> None:
    world.cordon("node-1")
    world.step(NOW + HOUR)
    text = TerminationMessage.of(ExitCode.WORKER_DIED, "wrong product", evidence=Evidence.PREFLIGHT).dumps()
    world.end("node-1", "Failed", text)
    assert world.step(NOW + HOUR + 60) == []
    assert world.api.cordoned() == ["node-1"]
    assert "wrong product" in world.record("node-1")
    assert world.step(NOW + 2 * HOUR - 1) == []
    assert world.step(NOW + 2 * HOUR) == ["node-1"]


def test_a_node_that_the_operator_did_not_cordon_is_never_touched(world: World) -> None:
    world.api.nodes["node-3"]["spec"]["unschedulable"] = True
    before = deepcopy(world.api.nodes["node-3"])
    assert world.step(NOW + 9 * HOUR) == []
    assert world.api.nodes["node-3"] == before


def test_nothing_is_checked_where_the_platform_does_not_ask_for_it(world: World) -> None:
    world.cordon("node-1")
    world.change(bad_nodes=BadNodes(cordon=True))
    assert world.step(NOW + HOUR) == []


def test_a_check_that_nobody_waits_for_any_more_is_deleted(world: World) -> None:
    world.cordon("node-1")
    world.step(NOW + HOUR)
    world.change(bad_nodes=BadNodes(cordon=True))
    assert world.step(NOW + HOUR + 60) == []
    assert world.api.cordoned() == ["node-1"]


def test_a_check_of_an_earlier_cordon_does_not_count(world: World) -> None:
    world.cordon("node-1")
    world.step(NOW + HOUR)
    world.end("node-1", "Complete")
    world.api.nodes["node-1"]["spec"] = {}
    world.cordon("node-1", at=NOW + HOUR + 30)
    assert world.step(NOW + HOUR + 60) == []
    assert world.api.cordoned() == ["node-1"]


def test_a_job_of_another_node_with_the_same_name_does_not_count(world: World) -> None:
    world.cordon("node-1")
    world.step(NOW + HOUR)
    world.end("node-1", "Complete")
    world.api.nodes["node-1"]["metadata"]["uid"] = "replaced"
    assert world.step(NOW + HOUR + 60) == []
    assert world.api.cordoned() == ["node-1"]


def test_a_refused_job_is_not_tried_again_before_an_hour_has_passed(world: World) -> None:
    world.cordon("node-1", "node-2")
    world.api.error = ApiError(403, "Forbidden", "jobs is forbidden: exceeded quota")
    assert world.step(NOW + HOUR) == []
    for name in ("node-1", "node-2"):
        assert "not checked: jobs is forbidden: exceeded quota" in world.record(name)
    world.api.error = None
    assert world.step(NOW + HOUR + 60) == []
    assert world.step(NOW + 2 * HOUR) == ["node-1", "node-2"]


def test_a_node_is_not_checked_more_often_while_the_api_server_fails(world: World) -> None:
    world.cordon("node-1")
    world.api.error = ApiError(500, "InternalError", "etcdserver: request timed out")
    with pytest.raises(ApiError, match="etcdserver"):
        world.step(NOW + HOUR)
    world.api.error = None
    assert world.step(NOW + HOUR + 60) == []
    assert world.step(NOW + 2 * HOUR) == ["node-1"]


def test_a_node_whose_check_the_charts_policy_refuses_names_what_to_do(world: World) -> None:
    world.cordon("node-1")
    message = (
        "jobs.batch is forbidden: ValidatingAdmissionPolicy 'objects' with binding 'objects' "
        "denied request: the operator may create and change only objects with the label "
        "megatron.training/recipe"
    )
    world.api.error = ApiError(403, "Forbidden", message)
    assert world.step(NOW + HOUR) == []
    why = "after helm upgrade with platform.badNodes.uncordonByCheck: true"
    assert json.loads(world.record("node-1"))["result"].endswith(why)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"image": None}, "not checked: it has no image"),
        ({"accelerators": {}}, "not checked: no profile of platform.accelerators describes it"),
    ],
)
def test_a_node_that_cannot_be_checked_has_the_reason(world: World, change: dict[str, Any], why: str) -> None:
    world.cordon("node-1")
    world.change(**change)
    assert world.step(NOW + HOUR) == []
    assert why in world.record("node-1")


def test_no_node_is_checked_while_no_platform_file_was_valid(world: World) -> None:
    world.cordon("node-1")
    world.platform = None
    assert world.step(NOW + HOUR) == []
    assert world.api.cordoned() == ["node-1"]


def test_few_checks_run_at_once() -> None:
    world = World(size=9)
    world.cordon(*world.api.nodes)
    assert len(world.step(NOW + HOUR)) == AT_ONCE
    assert len(world.step(NOW + HOUR + 60)) == AT_ONCE


def test_a_check_does_not_uncordon_a_node_that_somebody_has_cordoned_since() -> None:
    world = World()
    world.cordon("node-1")
    assert world.step(NOW + HOUR) == ["node-1"]
    node = world.api.nodes["node-1"]
    node["metadata"]["managedFields"] = [owner("kubectl")]
    world.end("node-1", "Complete")
    assert world.step(NOW + HOUR + 60) == [], "the check is deleted"
    assert world.api.cordoned() == ["node-1"]
    assert world.step(NOW + 3 * HOUR) == [], "it is not checked again"
