"""Devices are watched where the cluster has them and the platform wants it, and cost nothing elsewhere."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from megatron_operator.api.platform import Maintenance, PlatformConfig
from megatron_operator.controller import device_watch
from megatron_operator.controller.api_client import ApiError
from megatron_operator.controller.api_resources import Resource
from megatron_operator.controller.config_source import ConfigSource
from megatron_operator.controller.device_reader import DeviceReader
from megatron_operator.controller.device_watch import DeviceWatch
from megatron_operator.lifecycle.device_taints import DeviceId
from megatron_operator.lifecycle.status_builder import RecipeKey

RUN, OTHER = RecipeKey("research", "run"), RecipeKey("research", "other")
DRIVER = "gpu.example.com"
EVERYTHING = {"v1": {"resourceslices", "resourceclaims"}, "v1beta2": {"devicetaintrules"}}
XID = {"key": "xid", "value": "79", "effect": "NoSchedule"}


def slice_of(
    node: str, *taints: Any, version: int = 1, devices: int = 2, local: bool = True
) -> dict[str, Any]:
    found: list[dict[str, Any]] = [
        {"name": f"gpu-{n}", "attributes": {"type": {"string": "gpu"}}} for n in range(devices)
    ]
    found[0]["taints"] = list(taints)
    spec: dict[str, Any] = {"driver": DRIVER, "pool": {"name": node}, "devices": found}
    spec |= {"nodeName": node} if local else {"allNodes": True}
    return {"metadata": {"name": f"{node}-gpus", "resourceVersion": str(version)}, "spec": spec}


def rule(version: int = 1, **selector: str) -> dict[str, Any]:
    spec = {"taint": {"key": "drain", "effect": "NoExecute"}, "deviceSelector": selector}
    return {"metadata": {"name": "rule", "resourceVersion": str(version)}, "spec": spec}


def claim(
    node: str, *devices: str, name: str = "gpus", annotation: str | None = None, **result: Any
) -> dict[str, Any]:
    results = [{"driver": DRIVER, "pool": node, "device": each} | result for each in devices]
    metadata: dict[str, Any] = {"namespace": "research", "name": name}
    metadata |= {} if annotation is None else {"annotations": {annotation: "true"}}
    return {"metadata": metadata, "status": {"allocation": {"devices": {"results": results}}}}


def pod(node: str | None = "a", uid: str = "1", claim_name: str | None = "gpus") -> dict[str, Any]:
    claims = [] if claim_name is None else [{"name": "gpus", "resourceClaimName": claim_name}]
    metadata = {"namespace": "research", "name": f"run-{uid}", "uid": uid}
    return {"metadata": metadata, "spec": {"nodeName": node, "resourceClaims": claims}, "status": {}}


class Api:
    """The API server; a watch delivers `events` and then stays silent."""

    def __init__(self, served: dict[str, set[str]], *objects: dict[str, Any]) -> None:
        self.groups = served
        self.objects = {"resourceslices": list(objects), "devicetaintrules": [], "resourceclaims": []}
        self.classes: list[dict[str, Any]] = []
        self.requests: list[str] = []
        self.events: dict[str, asyncio.Queue[dict[str, Any] | Exception]] = {}
        self.refused = False
        self.unlisted: set[str] = set()

    async def served(self, _group: str) -> dict[str, set[str]]:
        self.requests.append("served")
        return self.groups

    async def versioned_pages(self, resource: Resource, _namespace: None) -> AsyncIterator[Any]:
        self.requests.append(f"list {resource.version}/{resource.plural}")
        if resource.plural in self.unlisted:
            raise ApiError(403, "Forbidden", f"cannot list {resource.plural}")
        yield "1", self.objects[resource.plural]

    async def pages(self, resource: Resource, _namespace: None) -> AsyncIterator[Any]:
        self.requests.append(f"list {resource.plural}")
        yield self.objects[resource.plural]

    async def find(self, resource: Resource, _namespace: None) -> Any:
        assert resource.plural == "deviceclasses"
        if self.refused:
            raise ApiError(403, "Forbidden", "cannot list deviceclasses")
        return self.classes

    async def get(self, _resource: Resource, _namespace: str, name: str) -> Any:
        self.requests.append(f"get {name}")
        if self.refused:
            raise ApiError(403, "Forbidden", "cannot get resourceclaims")
        found = [each for each in self.objects["resourceclaims"] if each["metadata"]["name"] == name]
        return found[0] if found else None

    async def watch(self, resource: Resource, _version: str, _seconds: int) -> AsyncIterator[dict[str, Any]]:
        queue = self.events.setdefault(resource.plural, asyncio.Queue())
        while True:
            event = await queue.get()
            if isinstance(event, Exception):
                raise event
            yield event

    async def deliver(self, plural: str, obj: dict[str, Any] | Exception, kind: str = "MODIFIED") -> None:
        await self.events[plural].put(obj if isinstance(obj, Exception) else {"type": kind, "object": obj})
        await turns()


class Config(ConfigSource):
    """The platform file; None where it is invalid."""

    def __init__(self) -> None:
        self.platform: PlatformConfig | None = PlatformConfig()

    async def valid_platform(self) -> PlatformConfig | None:
        return self.platform


async def turns() -> None:
    """Let all tasks go on until they wait."""
    for _ in range(20):
        await asyncio.sleep(0)


class Watching:
    """A watch that has discovered, and which runs it has notified."""

    def __init__(self, api: Api) -> None:
        client: Any = api
        self.config, self.notified = Config(), list[RecipeKey]()
        self.watch = DeviceWatch(client, self.config, self.notified.append)
        self.reader = DeviceReader(client, self.watch)

    async def discover(self) -> "Watching":
        await self.watch.discover()
        await turns()
        return self


async def test_a_cluster_without_the_api_is_only_asked_for_its_groups() -> None:
    api = Api({})
    watching = await Watching(api).discover()
    await watching.discover()
    assert api.requests == ["served", "served"]
    assert not watching.watch.watches()
    assert watching.watch.tainted("a") == {}
    assert await watching.reader.backed() == {}
    assert watching.reader.unread(RUN, [pod()]) == []
    assert await watching.reader.limited(RUN, [pod()], {"a": 1}) == {"a": 1}
    assert api.requests == ["served", "served"]


async def test_a_platform_that_does_not_want_it_is_not_asked_and_may_change_its_mind() -> None:
    api = Api(EVERYTHING, slice_of("a", XID))
    watching = Watching(api)
    watching.config.platform = PlatformConfig(maintenance=Maintenance(device_taints=False))
    await watching.discover()
    assert api.requests == []
    watching.config.platform = PlatformConfig()
    await watching.discover()
    assert watching.watch.tainted("a")
    watching.config.platform = PlatformConfig(maintenance=Maintenance(device_taints=False))
    await watching.discover()
    assert not watching.watch.watches()
    assert watching.watch.tainted("a") == {}


async def test_without_a_valid_platform_file_the_default_holds() -> None:
    watching = Watching(Api(EVERYTHING, slice_of("a", XID)))
    watching.config.platform = None
    await watching.discover()
    assert watching.watch.watches()


async def test_slices_and_rules_are_listed_once_in_the_best_version_that_is_served() -> None:
    served = EVERYTHING | {"v1alpha3": {"devicetaintrules"}}
    api = Api(served, slice_of("a"))
    watching = await Watching(api).discover()
    await watching.discover()
    lists = [each for each in api.requests if each.startswith("list")]
    assert lists == ["list v1/resourceslices", "list v1beta2/devicetaintrules"]


async def test_slices_are_watched_where_rules_are_not_served() -> None:
    api = Api({"v1": {"resourceslices"}}, slice_of("a", XID))
    watching = await Watching(api).discover()
    assert list(watching.watch.tainted("a")) == [DeviceId(DRIVER, "a", "gpu-0")]


async def test_a_change_is_reported_to_the_runs_on_the_node_and_a_rule_to_all() -> None:
    api = Api(EVERYTHING, slice_of("a"), slice_of("b"))
    watching = await Watching(api).discover()
    watching.watch.notify_of(RUN, ["a"])
    watching.watch.notify_of(OTHER, ["b"])
    await api.deliver("resourceslices", slice_of("a", XID, version=2))
    assert watching.notified == [RUN]
    await api.deliver("resourceslices", slice_of("a", XID, version=3))
    assert watching.notified == [RUN], "nothing has changed"
    await api.deliver("devicetaintrules", rule(4, pool="a"), "ADDED")
    assert watching.notified == [RUN, RUN, OTHER]
    tainted = watching.watch.tainted("a")
    assert {device.name: len(taints) for device, taints in tainted.items()} == {"gpu-0": 2, "gpu-1": 1}
    assert watching.watch.tainted("b") == {}
    watching.watch.forget(OTHER)
    await api.deliver("devicetaintrules", rule(5, pool="a"), "DELETED")
    assert watching.notified == [RUN, RUN, OTHER, RUN]


async def test_the_devices_of_a_slice_that_is_gone_are_gone() -> None:
    api = Api(EVERYTHING, slice_of("a", XID), slice_of("shared", XID, local=False))
    watching = await Watching(api).discover()
    assert watching.watch.nodes() == ["a"], "only devices of one node count"
    await api.deliver("resourceslices", slice_of("a", version=2), "DELETED")
    assert (watching.watch.nodes(), watching.watch.tainted("a")) == ([], {})


async def test_taints_are_known_once_all_that_is_served_has_been_listed() -> None:
    api = Api(EVERYTHING, slice_of("a"))
    watching = Watching(api)
    assert not watching.watch.known(), "what is served is not"
    await watching.watch.discover()
    assert not watching.watch.known(), "nothing has been listed"
    await turns()
    assert watching.watch.known()
    assert (await Watching(Api({})).discover()).watch.known(), "there are no devices"


async def test_taints_are_not_known_while_slices_may_not_be_listed() -> None:
    api = Api(EVERYTHING, slice_of("a"))
    api.unlisted = {"resourceslices"}
    assert not (await Watching(api).discover()).watch.known()


async def test_a_discovery_that_lacks_what_is_still_watched_stops_nothing() -> None:
    api = Api(EVERYTHING, slice_of("a", XID))
    watching = await Watching(api).discover()
    api.groups = {}
    await watching.discover()
    assert watching.watch.tainted("a"), "another API server still serves it"
    await api.deliver("resourceslices", ApiError(404, "NotFound", "no such resource"))
    await watching.discover()
    assert not watching.watch.watches()


async def test_rules_stay_until_those_of_another_version_have_been_listed() -> None:
    api = Api(EVERYTHING, slice_of("a"))
    api.objects["devicetaintrules"] = [rule()]
    watching = await Watching(api).discover()
    await api.deliver("devicetaintrules", ApiError(404, "NotFound", "no such version"))
    api.groups = {"v1": {"resourceslices", "resourceclaims", "devicetaintrules"}}
    await watching.watch.discover()
    assert len(watching.watch.tainted("a")) == 2
    await turns()
    assert api.requests[-1] == "list v1/devicetaintrules"
    assert len(watching.watch.tainted("a")) == 2


async def test_a_snapshot_does_not_change_with_what_is_watched() -> None:
    api = Api(EVERYTHING, slice_of("a", XID))
    api.objects["devicetaintrules"] = [rule(pool="a")]
    watching = await Watching(api).discover()
    before = watching.watch.snapshot(["a"])
    await api.deliver("resourceslices", slice_of("a", version=2), "DELETED")
    await api.deliver("devicetaintrules", rule(3, pool="a"), "DELETED")
    assert {device.name: len(taints) for device, taints in before.tainted("a").items()} == {
        "gpu-0": 2,
        "gpu-1": 1,
    }


async def test_what_is_no_longer_served_is_forgotten() -> None:
    api = Api(EVERYTHING, slice_of("a"))
    api.objects["devicetaintrules"] = [rule()]
    watching = await Watching(api).discover()
    assert len(watching.watch.tainted("a")) == 2
    await api.deliver("devicetaintrules", ApiError(404, "NotFound", "no such resource"))
    api.groups = {"v1": {"resourceslices"}}
    await watching.discover()
    assert watching.watch.tainted("a") == {}


async def test_a_discovery_that_fails_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_watch, "DISCOVERY", 0.0)
    api = Api(EVERYTHING, slice_of("a"))
    answers = [ApiError(503, "Unavailable", "not now"), EVERYTHING]

    async def served(_group: str) -> Any:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(api, "served", served)
    watching = Watching(api)
    task = asyncio.create_task(watching.watch.run())
    await turns()
    assert watching.watch.nodes() == ["a"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not watching.watch.watches(), "nothing is left running"
    assert not watching.watch.known(), "the last reconciles drop no sign"
