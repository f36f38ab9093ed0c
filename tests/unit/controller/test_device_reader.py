"""Claims are read only where a device is tainted, and devices limit where a run could move."""

from typing import Any

from megatron_operator.api.recovery_status import NodeMaintenance

from tests.unit.controller.test_device_watch import (
    DRIVER,
    EVERYTHING,
    RUN,
    XID,
    Api,
    Watching,
    claim,
    pod,
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


async def test_claims_that_may_not_be_read_are_asked_for_once() -> None:
    api = Api(EVERYTHING, slice_of("a", XID))
    api.refused = True
    watching = await watching_pods(api, pod())
    await watching.reader.read(RUN, [pod()])
    assert [each for each in api.requests if each.startswith("get")] == ["get gpus"]
    assert watching.reader.signs(RUN, [pod()], {}) == {}


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


async def test_nodes_have_the_extended_resources_that_their_untainted_devices_back() -> None:
    api = Api(EVERYTHING, slice_of("a", XID), slice_of("b"))
    watching = await watching_pods(api)
    assert await watching.reader.backed() == {}
    selector = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
    spec = {"selectors": [selector], "extendedResourceName": "example.com/gpu"}
    api.classes = [{"metadata": {"name": "gpus"}, "spec": spec}]
    found = await watching.reader.backed()
    assert {node: each["example.com/gpu"] for node, each in found.items()} == {"a": "1", "b": "2"}
    api.refused = True
    assert await watching.reader.backed() == {}, "the rest of the cluster counts all the same"
