"""The operator cordons within the platform's caps, and uncordons what it cordoned."""

import asyncio
from typing import Any

import pytest
from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.api.labels import ANNOTATION_UNCORDONED_AT, FIELD_MANAGER, LABEL_CORDONED_AT
from megatron_operator.api.platform import AcceleratorProfile, BadNodes, PlatformConfig
from megatron_operator.api.times import timestamp
from megatron_operator.controller.cordoner import Cordoner
from megatron_operator.lifecycle.node_evidence import add_evidence
from megatron_operator.lifecycle.status_builder import StatusBuilder

NOW = 1_800_000_000.0
RULES = BadNodes(cordon=True, max_per_hour=2)


class NodesInMemory:
    """The API client's methods for nodes."""

    def __init__(self, size: int) -> None:
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": timestamp(NOW)}
        self.nodes: dict[str, Any] = {
            f"node-{index}": {
                "metadata": {"name": f"node-{index}", "labels": {}, "annotations": {}},
                "spec": {},
                "status": {
                    "conditions": [ready],
                    "nodeInfo": {"bootID": "first"},
                    "capacity": {"nvidia.com/gpu": "8"},
                },
            }
            for index in range(size)
        }

    async def find(
        self, _resource: object, _namespace: None, labels: str | None = None, fields: str | None = None
    ) -> list[Any]:
        name = (fields or "").removeprefix("metadata.name=")
        return [
            node
            for node in self.nodes.values()
            if (labels is None or labels in node["metadata"]["labels"])
            and (fields is None or node["metadata"]["name"] == name)
        ]

    async def merge_node(self, node: Any, changes: Any) -> Any:
        for part in ("labels", "annotations"):
            _merge(node["metadata"][part], changes["metadata"][part])
        _merge(node["spec"], changes.get("spec", {}))
        return node

    def cordoned(self) -> list[str]:
        return [name for name, node in self.nodes.items() if node["spec"].get("unschedulable")]


def _merge(target: dict[str, Any], changes: dict[str, Any]) -> None:
    for key, value in changes.items():
        target.pop(key, None)
        if value is not None:
            target[key] = value


class Config:
    platform: PlatformConfig | None = PlatformConfig(
        bad_nodes=RULES, accelerators={"h100": AcceleratorProfile()}
    )

    async def read(self) -> Any:
        return self

    async def valid_platform(self) -> PlatformConfig | None:
        return self.platform


class World:
    def __init__(self) -> None:
        self.api = NodesInMemory(30)
        api: Any = self.api
        config: Any = Config()
        self.cordoner = Cordoner(api, config)
        self.events: list[str] = []

    def cordon(self, *names: str, rules: BadNodes = RULES, pool: int = 30) -> list[str]:
        """Cordon nodes with evidence; returns all that are cordoned then."""
        metadata = {"name": "run", "namespace": "default", "uid": "u", "generation": 1}
        status = StatusBuilder.of({"metadata": metadata, "spec": {}}, NOW)
        for index, name in enumerate(names):
            cause = f"ECC {'x' * index}"
            status.set(recovery=add_evidence(status.recovery, name, "DeviceMemory", cause, NOW))
        asyncio.run(self.cordoner.cordon(status, names, rules, pool))
        self.events += [f"{event.reason}: {event.message}" for event in status.events]
        return self.api.cordoned()


@pytest.fixture
def world() -> World:
    return World()


def test_nodes_are_cordoned_only_where_the_platform_asks_for_it(world: World) -> None:
    assert world.cordon("node-1", rules=BadNodes()) == []
    assert world.cordon("node-1") == ["node-1"]
    assert world.api.nodes["node-1"]["metadata"]["labels"] == {LABEL_CORDONED_AT: str(int(NOW))}


def test_nodes_are_cordoned_and_uncordoned_by_the_last_valid_platform_file(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read(_: Config) -> Any:
        raise InvalidRecipeError([FieldError("platform", "is invalid", "correct it")])

    monkeypatch.setattr(Config, "read", read)
    assert world.cordon("node-1") == ["node-1"]
    world.api.nodes["node-1"]["status"]["nodeInfo"]["bootID"] = "second"
    asyncio.run(world.cordoner.uncordon_healed(NOW + 60))
    assert world.api.cordoned() == []


def test_nodes_stay_cordoned_while_no_platform_file_was_valid(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.cordon("node-1")
    world.api.nodes["node-1"]["status"]["nodeInfo"]["bootID"] = "second"
    monkeypatch.setattr(Config, "platform", None)
    asyncio.run(world.cordoner.uncordon_healed(NOW + 60))
    assert world.api.cordoned() == ["node-1"]


def test_no_more_nodes_are_cordoned_than_the_caps_allow_whichever_run_asks(world: World) -> None:
    assert world.cordon("node-1", "node-2", "node-3") == ["node-1", "node-2"]
    assert world.cordon("node-4") == ["node-1", "node-2"]


def test_one_node_of_a_small_pool_is_cordoned(world: World) -> None:
    assert world.cordon("node-1", "node-2", pool=4) == ["node-1"]


def test_a_cap_that_keeps_a_node_from_being_cordoned_is_an_event(world: World) -> None:
    world.cordon("node-1", "node-2", pool=4)
    world.cordon("node-3", "node-4")
    problem = "NodeNotCordoned: this run avoids node {}, but it is not cordoned: the operator has cordoned"
    assert world.events == [
        f"{problem.format('node-2')} 1 and platform.badNodes.maxShare 0.1 of the nodes allows 1 node",
        f"{problem.format('node-4')} 2 and platform.badNodes.maxPerHour allows 2 in an hour",
    ]


def test_a_node_that_is_gone_is_no_error(world: World) -> None:
    assert world.cordon("node-99", "node-1") == ["node-1"]


def test_a_node_that_was_restarted_is_uncordoned_and_one_of_somebody_else_stays(world: World) -> None:
    world.api.nodes["node-7"]["spec"]["unschedulable"] = True
    world.cordon("node-1", "node-7")
    asyncio.run(world.cordoner.uncordon_healed(NOW + 60))
    assert world.api.cordoned() == ["node-1", "node-7"]
    for node in world.api.nodes.values():
        node["status"]["nodeInfo"]["bootID"] = "second"
    asyncio.run(world.cordoner.uncordon_healed(NOW + 120))
    assert world.api.cordoned() == ["node-7"]
    assert world.api.nodes["node-1"]["metadata"]["labels"] == {}


def test_a_node_that_somebody_uncordoned_and_cordoned_later_stays_cordoned(world: World) -> None:
    world.cordon("node-1")
    node = world.api.nodes["node-1"]
    node["spec"].pop("unschedulable")
    asyncio.run(world.cordoner.uncordon_healed(NOW + 60))
    since = {ANNOTATION_UNCORDONED_AT: str(int(NOW + 60))}
    assert node["metadata"] == {"name": "node-1", "labels": {}, "annotations": since}
    node["spec"]["unschedulable"] = True
    node["status"]["nodeInfo"]["bootID"] = "second"
    asyncio.run(world.cordoner.uncordon_healed(NOW + 120))
    assert world.api.cordoned() == ["node-1"]


def test_a_node_that_somebody_uncordoned_and_cordoned_between_two_checks_stays_cordoned(world: World) -> None:
    world.cordon("node-1", "node-2")
    node = world.api.nodes["node-1"]
    node["metadata"]["managedFields"] = [owner("kubectl")]
    node["status"]["nodeInfo"]["bootID"] = "second"
    asyncio.run(world.cordoner.uncordon_healed(NOW + 60))
    assert world.api.cordoned() == ["node-1", "node-2"]
    assert (node["metadata"]["labels"], node["metadata"]["annotations"]) == ({}, {})
    assert world.cordon("node-3") == ["node-1", "node-2", "node-3"], "it counts for maxPerHour no longer"


def test_a_node_whose_cordon_is_the_operators_own_is_uncordoned(world: World) -> None:
    world.cordon("node-1")
    node = world.api.nodes["node-1"]
    node["metadata"]["managedFields"] = [owner(FIELD_MANAGER)]
    node["status"]["nodeInfo"]["bootID"] = "second"
    asyncio.run(world.cordoner.uncordon_healed(NOW + 60))
    assert world.api.cordoned() == []


def owner(manager: str) -> dict[str, Any]:
    """The entry of who has set a node unschedulable."""
    return {"manager": manager, "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}


def test_a_node_that_somebody_uncordoned_does_not_count_against_the_caps(world: World) -> None:
    world.cordon("node-1", "node-2")
    world.api.nodes["node-1"]["spec"].pop("unschedulable")
    assert world.cordon("node-3") == ["node-2", "node-3"]


def test_a_node_without_the_platforms_accelerators_is_never_cordoned_whatever_a_pod_reports(
    world: World,
) -> None:
    """Whoever may create pods can have one run on any node, and report that the node failed."""
    world.api.nodes["node-1"]["status"]["capacity"] = {"cpu": "8"}
    assert world.cordon("node-1", "node-2") == ["node-2"]
    [event] = world.events
    assert event.endswith("it is not cordoned: no profile of platform.accelerators describes it")
