"""Claims are read only where a device is tainted, and devices limit where a run could move."""

import asyncio
from typing import Any

import pytest
from megatron_operator.api.recovery_status import NodeMaintenance
from megatron_operator.controller import device_reader
from megatron_operator.controller.device_reader import EXTENDED

from tests.unit.controller.test_device_watch import (
    DRIVER,
    EVERYTHING,
    RUN,
    XID,
    Api,
    Watching,
    claim,
    pod,
    rule,
    slice_of,
)

SIGN = f"device {DRIVER}/a/gpu-0 with taint xid=79:NoSchedule"


async def watching_pods(api: Api, *pods: dict[str, Any]) -> Watching:
    watching = await Watching(api).discover()
    await watching.reader.read(RUN, pods)
    return watching


async def test_the_claim_of_a_pod_is_read_once_and_only_where_a_device_of_its_node_is_tainted() -> None:
    api = Api(EVERYTHING, slice_of("a", XID), slice_of("b"))
    api.objects["resourceclaims"] = [claim("a", "gpu-0")]
    pods = [pod("a"), pod("b", "2"), pod(None, "3"), pod("a", "4", claim_name=None)]
    watching = await watching_pods(api, *pods)
    await watching.reader.read(RUN, pods)
    assert [each for each in api.requests if each.startswith("get")] == ["get gpus"]
    assert watching.reader.unread(RUN, pods) == []
    assert watching.reader.signs(RUN, pods, {}) == {"a": {SIGN}}
    assert watching.reader.unread(RUN, [pod("a", "5")]) == [pod("a", "5")], "another pod has another claim"
    watching.reader.forget(RUN)
    assert watching.reader.unread(RUN, pods) == [pods[0]]


async def test_a_taint_of_a_device_that_the_pod_does_not_use_or_tolerates_is_no_sign() -> None:
    for allocated in (claim("a", "gpu-1"), claim("a", "gpu-0", tolerations=[{"operator": "Exists"}])):
        api = Api(EVERYTHING, slice_of("a", XID))
        api.objects["resourceclaims"] = [allocated]
        watching = await watching_pods(api, pod())
        assert watching.reader.signs(RUN, [pod()], {}) == {}


async def test_a_node_that_the_run_left_for_a_device_keeps_its_sign_until_the_taint_is_gone() -> None:
    api = Api(EVERYTHING, slice_of("a", XID))
    watching = await watching_pods(api)
    recorded = {"a": NodeMaintenance(sign=SIGN, time="2026-01-01T00:00:00Z")}
    assert watching.reader.signs(RUN, [], recorded) == {"a": {SIGN}}
    await api.deliver("resourceslices", slice_of("a", version=2))
    assert watching.notified == [RUN], "its release follows"
    assert watching.reader.signs(RUN, [], recorded) == {}


async def test_a_recorded_sign_stays_until_taints_are_known() -> None:
    recorded = {
        "a": NodeMaintenance(sign=SIGN, time="2026-01-01T00:00:00Z"),
        "b": NodeMaintenance(sign="node taint x", time="2026-01-01T00:00:00Z"),
    }
    watching = Watching(Api(EVERYTHING, slice_of("a"), slice_of("b")))
    assert watching.reader.signs(RUN, [], recorded) == {"a": {SIGN}}
    assert watching.reader.signs(RUN, [pod()], recorded) == {"a": {SIGN}}, "its claims are not known either"
    await watching.discover()
    assert watching.reader.signs(RUN, [], recorded) == {}


async def test_a_recorded_sign_stays_while_the_slice_is_gone() -> None:
    api = Api(EVERYTHING, slice_of("a"))
    api.objects["devicetaintrules"] = [rule(pool="a")]
    watching = await watching_pods(api)
    [sign] = watching.reader.signs(
        RUN, [], recorded := {"a": NodeMaintenance(sign=SIGN, time="2026-01-01T00:00:00Z")}
    )["a"]
    await api.deliver("resourceslices", slice_of("a", version=2), "DELETED")
    assert watching.reader.signs(RUN, [], recorded) == {"a": {SIGN}}
    await api.deliver("devicetaintrules", rule(3, pool="a"), "DELETED")
    await api.deliver("resourceslices", slice_of("a", version=4), "ADDED")
    assert watching.reader.signs(RUN, [], recorded) == {}
    assert "drain:NoExecute" in sign


async def test_claims_that_may_not_be_read_are_asked_for_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = Api(EVERYTHING, slice_of("a", XID))
    api.objects["resourceclaims"] = [claim("a", "gpu-0")]
    api.refused = True
    pods = [pod(), pod(uid="2")]
    watching = await watching_pods(api, *pods)
    await watching.reader.read(RUN, pods)
    assert [each for each in api.requests if each.startswith("get")] == ["get gpus"]
    assert watching.reader.unread(RUN, pods) == []
    assert watching.reader.signs(RUN, pods, {}) == {}
    api.refused = False
    monkeypatch.setattr(device_reader, "REFUSED", 0.0)
    await watching.reader.read(RUN, pods)
    assert watching.reader.signs(RUN, pods, {}) == {"a": {SIGN}}


async def test_a_run_fits_only_where_devices_such_as_its_own_are_free() -> None:
    slices = (slice_of("a", XID), slice_of("b"), slice_of("c"), slice_of("d", XID))
    api = Api(EVERYTHING, *slices)
    api.objects["resourceclaims"] = [claim("a", "gpu-0", "gpu-1"), claim("c", "gpu-1", name="of-another")]
    watching = await watching_pods(api, pod())
    fits = dict.fromkeys("abcde", 2)
    assert await watching.reader.limited(RUN, [pod()], fits) == {"b": 1}
    api.objects["resourceclaims"][0] = claim("a", "gpu-0")
    watching.reader.forget(RUN)
    await watching.reader.read(RUN, [pod()])
    assert await watching.reader.limited(RUN, [pod()], fits) == {"a": 1, "b": 2, "c": 1, "d": 1}
    lists = [each for each in api.requests if each == "list resourceclaims"]
    assert len(lists) == 1, "until the whole cluster is listed again"
    api.objects["resourceclaims"].pop()
    await watching.reader.backed()
    assert await watching.reader.limited(RUN, [pod()], fits) == {"a": 1, "b": 2, "c": 2, "d": 1}


async def test_a_device_counts_once_and_not_for_claims_that_only_monitor_it() -> None:
    api = Api(EVERYTHING, slice_of("a", XID), slice_of("b"))
    shared = [claim("b", "gpu-0", name=name) for name in ("one", "two")]
    monitor = claim("b", "gpu-0", "gpu-1", name="monitor", adminAccess=True)
    api.objects["resourceclaims"] = [claim("a", "gpu-0"), *shared, monitor]
    watching = await watching_pods(api, pod())
    assert await watching.reader.limited(RUN, [pod()], {"b": 2}) == {"b": 1}


async def test_the_devices_of_a_run_are_read_where_only_its_node_announces_maintenance() -> None:
    api = Api(EVERYTHING, slice_of("a"), slice_of("b", devices=1), slice_of("c"))
    api.objects["resourceclaims"] = [claim("a", "gpu-0", "gpu-1")]
    pods = [pod(None, "0"), pod(), pod(uid="2")]
    watching = await watching_pods(api, *pods)
    for _ in range(2):
        assert await watching.reader.limited(RUN, pods, dict.fromkeys("bc", 3)) == {"c": 1}
    assert [each for each in api.requests if each.startswith("get")] == ["get gpus"], "of one pod, once"


async def test_free_devices_cannot_be_counted_before_they_are_known_for_pods_that_claim_some() -> None:
    watching = Watching(Api(EVERYTHING, slice_of("a")))
    assert not watching.reader.can_count([pod()])
    assert watching.reader.can_count([pod(claim_name=None)])
    await watching.discover()
    assert watching.reader.can_count([pod()])


async def test_nodes_have_the_extended_resources_that_their_untainted_devices_back() -> None:
    api = Api(EVERYTHING, slice_of("a", XID), slice_of("b"))
    watching = await watching_pods(api)
    assert await watching.reader.backed() == {}
    selector = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
    spec = {"selectors": [selector], "extendedResourceName": "example.com/gpu"}
    api.classes = [{"metadata": {"name": "gpus"}, "spec": spec}]
    found = await watching.reader.backed()
    assert {node: each["example.com/gpu"] for node, each in found.items()} == {"a": "1", "b": "2"}
    extended = claim("b", "gpu-0", name="extended", annotation=EXTENDED)
    api.objects["resourceclaims"] = [claim("b", "gpu-1"), extended]
    found = await watching.reader.backed()
    assert {node: each["example.com/gpu"] for node, each in found.items()} == {"a": "1", "b": "1"}, (
        "a device of a plain claim is taken; the others count with the pods that request them"
    )
    api.refused = True
    assert await watching.reader.backed() == {}, "the rest of the cluster counts all the same"


async def test_devices_are_counted_from_a_snapshot_that_no_event_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the thread nothing but its call is replaced: an event arrives before it begins."""
    api = Api(EVERYTHING, slice_of("a", XID), slice_of("b"))
    selector = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
    api.classes = [{"metadata": {"name": "gpus"}, "spec": {"selectors": [selector]}}]
    api.objects["resourceclaims"] = [claim("a", "gpu-0")]
    watching = await watching_pods(api, pod())
    to_thread = asyncio.to_thread

    async def after_an_event(function: Any, *args: Any) -> Any:
        await api.deliver("resourceslices", slice_of("b", version=2), "DELETED")
        return await to_thread(function, *args)

    monkeypatch.setattr(device_reader.asyncio, "to_thread", after_an_event)
    assert (await watching.reader.backed()).keys() == {"a", "b"}
    await api.deliver("resourceslices", slice_of("b", version=3), "ADDED")
    assert await watching.reader.limited(RUN, [pod()], {"b": 2}) == {"b": 2}
