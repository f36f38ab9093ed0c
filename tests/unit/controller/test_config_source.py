"""The platform file: every invalid field is named, with where to fix it."""

import asyncio
import time
from typing import Any

import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.controller import config_source
from megatron_operator.controller.api_client import ApiError
from megatron_operator.controller.config_source import ConfigSource, parse_platform
from megatron_operator.controller.cordoner import Cordoner
from megatron_operator.controller.settings import Settings
from megatron_operator.lifecycle.status_builder import StatusBuilder

SOURCE = "ConfigMap megatron-system/megatron-platform"
METADATA = {"name": "run", "namespace": "default", "uid": "u", "generation": 1, "resourceVersion": "1"}


def test_an_empty_file_is_an_empty_platform() -> None:
    assert parse_platform("", SOURCE).accelerators == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("accelerators: [", "platform.yaml: invalid YAML in line 2"),
        ("acceleratorz: {}", "platform.yaml.acceleratorz: unknown field; did you mean `accelerators`?"),
        ("accelerators: {h100: {perNode: 0}}", "platform.yaml.accelerators.h100.perNode: 0 is below 1"),
        (
            "platform: {queue: a}",
            "platform.yaml.platform: is a value of the chart, and this file has the content of it alone; "
            "move what is below it to the top of the file",
        ),
        ("queue: a\nqueue: b", "platform.yaml: invalid YAML in line 2: duplicate key 'queue'"),
        ("[" * 100_000, "platform.yaml: invalid YAML in line 1: more than"),
        ("false", "platform.yaml: false is not an object"),
        ("- a\n- list", "platform.yaml: ['a', 'list'] is not an object"),
    ],
)
def test_an_invalid_field_is_named_with_where_to_fix_it(text: str, message: str) -> None:
    with pytest.raises(InvalidRecipeError) as error:
        parse_platform(text, SOURCE)
    assert message in str(error.value)
    assert f"correct it in {SOURCE}" in str(error.value)


class ConfigMaps:
    """Stands in for the API client: a catalog of many recipes."""

    async def get(self, _kind: object, _namespace: str, name: str) -> dict[str, Any] | None:
        if name != "megatron-catalog":
            return None
        entries = "".join(f"  e{n}: {{extends: llama3-8b, description: d, source: s}}\n" for n in range(2000))
        return {"metadata": {"resourceVersion": "1"}, "data": {"many.yaml": f"entries:\n{entries}"}}


async def test_the_event_loop_turns_while_a_large_catalog_is_parsed() -> None:
    api: Any = ConfigMaps()
    source = ConfigSource(api, Settings())
    reading = asyncio.ensure_future(source.read())
    ticks = 0
    while not reading.done():
        await asyncio.sleep(0)
        ticks += 1
    assert "e1999" in (await reading).catalog.names()
    assert ticks > 10


@pytest.mark.parametrize("field", ["image", "queue", "dataStorageClassName"])
def test_a_text_of_the_platform_has_the_bound_that_it_has_in_a_recipe(field: str) -> None:
    with pytest.raises(InvalidRecipeError, match=rf"platform\.yaml\.{field}: "):
        parse_platform(f"{field}: {'a' * 1000}", SOURCE)
    with pytest.raises(InvalidRecipeError, match=r"platform\.yaml\.checkpoint\.storageClassName: "):
        parse_platform(f"checkpoint: {{storageClassName: {'a' * 1000}}}", SOURCE)


class ChangingPlatform:
    """Stands in for the API client: the platform's `image` is another one at each read."""

    reads = 0

    async def get(self, _kind: object, _namespace: str, name: str) -> dict[str, Any] | None:
        if name != "megatron-platform":
            return None
        self.reads += 1
        version = str(self.reads)
        return {
            "metadata": {"resourceVersion": version},
            "data": {"platform.yaml": f"image: trainer:{version}"},
        }


async def test_the_configuration_is_read_again_when_a_newer_one_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(config_source, "FRESH", 3600.0)
    api: Any = ChangingPlatform()
    source = ConfigSource(api, Settings())
    assert (await source.read()).platform.image == "trainer:1"
    assert (await source.read()).platform.image == "trainer:1", "it is cached"
    changed = time.monotonic()
    assert (await source.read(since=changed)).platform.image == "trainer:2"
    assert (await source.read(since=changed)).platform.image == "trainer:2", "one read is enough for all"


class SlowPlatform(ChangingPlatform):
    """Each read takes twice as long as the configuration is fresh, by its own `time`."""

    def __init__(self) -> None:
        self.time = 1000.0

    async def get(self, _kind: object, _namespace: str, name: str) -> dict[str, Any] | None:
        await asyncio.sleep(0)
        self.time += config_source.FRESH
        return await super().get(_kind, _namespace, name)


async def test_all_who_wait_for_a_slow_read_share_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    api: Any = SlowPlatform()
    monkeypatch.setattr(config_source.time, "monotonic", lambda: api.time)
    source = ConfigSource(api, Settings(node_discovery=False))
    first = asyncio.create_task(source.read())
    await asyncio.sleep(0)
    api.time += config_source.FRESH / 2
    await asyncio.gather(first, *(source.read(since=api.time) for _ in range(32)))
    assert api.reads == 2


async def test_a_reconcile_uses_what_the_controller_has_read(monkeypatch: pytest.MonkeyPatch) -> None:
    api: Any = SlowPlatform()
    monkeypatch.setattr(config_source.time, "monotonic", lambda: api.time)
    source = ConfigSource(api, Settings(node_discovery=False))
    await source.read()
    api.time += config_source.FRESH
    assert (await source.read(age=config_source.RECENT)).platform.image == "trainer:1"
    api.time += config_source.RECENT
    assert (await source.read(age=config_source.RECENT)).platform.image == "trainer:2"


class NodesThatFail(SlowPlatform):
    """Lists of nodes fail while `failing`."""

    failing = True

    async def node_labels(self) -> list[dict[str, str]]:
        if self.failing:
            raise ApiError(503, "ServiceUnavailable", "try again")
        return [{"nvidia.com/gpu.product": "NVIDIA-H200", "nvidia.com/gpu.count": "8"}]


async def test_the_configuration_is_unread_until_nodes_are_listed_and_then_keeps_the_last_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api: Any = NodesThatFail()
    monkeypatch.setattr(config_source.time, "monotonic", lambda: api.time)
    source = ConfigSource(api, Settings(node_discovery=True))
    for _ in range(2):
        with pytest.raises(ApiError):
            await source.read()
        assert source.revision == 0
    api.failing = False
    profiles = (await source.read()).platform.accelerators
    assert profiles.keys() == {"h200"}
    api.failing = True
    api.time += config_source.NODES_FRESH
    with pytest.raises(ApiError):
        await source.read()
    assert (await source.read()).platform.accelerators == profiles


def priority_class(name: str, value: int = 1, **fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "value": value, "preemptionPolicy": "Never"} | fields


class PriorityClasses:
    """Stands in for the API client: a platform that names the PriorityClass `recovery`."""

    def __init__(self, *names: str) -> None:
        self.classes = [priority_class(name) for name in names]
        self.text = "recoveryPriorityClassName: recovery"
        self.looks = 0
        self.refusal: ApiError | None = None
        self.platform_version = self.catalog_version = "1"

    async def get(self, _kind: object, _namespace: str, name: str) -> dict[str, Any] | None:
        if name == "megatron-catalog":
            return {"metadata": {"resourceVersion": self.catalog_version}, "data": {}}
        return {"metadata": {"resourceVersion": self.platform_version}, "data": {"platform.yaml": self.text}}

    async def find(self, _kind: object, namespace: str | None) -> list[dict[str, Any]]:
        assert namespace is None
        self.looks += 1
        if self.refusal is not None:
            raise self.refusal
        return list(self.classes)


def source_of(api: Any) -> ConfigSource:
    return ConfigSource(api, Settings(node_discovery=False))


async def test_a_platform_whose_priority_class_is_missing_is_refused_until_it_exists() -> None:
    api = PriorityClasses("other")
    source = source_of(api)
    for _ in range(2):
        with pytest.raises(InvalidRecipeError) as refused:
            await source.read(age=0.0)
        (error,) = refused.value.errors
        assert error.field == "platform.yaml.recoveryPriorityClassName"
        assert error.message == "there is no PriorityClass recovery"
        assert error.fix == f"create it, or correct the name in {SOURCE}"
    assert source.revision == 1
    api.classes.append(priority_class("recovery"))
    assert (await source.read(age=0.0)).platform.recovery_priority_class_name == "recovery"
    assert source.revision == 2


async def test_a_class_that_was_missing_is_looked_for_again_after_an_error() -> None:
    api = PriorityClasses()
    source = source_of(api)
    with pytest.raises(InvalidRecipeError, match="there is no PriorityClass recovery"):
        await source.read(age=0.0)
    api.refusal = ApiError(503, "ServiceUnavailable", "try again")
    with pytest.raises(ApiError):
        await source.read(age=0.0)
    api.refusal = None
    api.classes.append(priority_class("recovery"))
    assert (await source.read(age=0.0)).platform.recovery_priority_class_name == "recovery"


async def test_a_class_that_was_found_is_not_looked_for_before_the_file_changes() -> None:
    api = PriorityClasses("recovery")
    source = source_of(api)
    await source.read()
    api.classes.clear()
    api.catalog_version = "2"
    assert (await source.read(age=0.0)).platform.recovery_priority_class_name == "recovery"
    assert source.revision == 2
    api.platform_version = "2"
    with pytest.raises(InvalidRecipeError, match="there is no PriorityClass recovery"):
        await source.read(age=0.0)


async def test_where_the_operator_may_not_list_priority_classes_the_name_is_trusted_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api = PriorityClasses()
    api.refusal = ApiError(403, "Forbidden", "no rights")
    assert (await source_of(api).read()).platform.recovery_priority_class_name == "recovery"
    assert "no rights to look whether PriorityClass recovery exists" in caplog.text


async def test_a_class_is_looked_for_again_once_the_operator_may(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upgrade of the chart writes the platform file before the rights."""
    moment = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: moment[0])
    api = PriorityClasses()
    api.refusal = ApiError(403, "Forbidden", "no rights")
    source = source_of(api)
    for moment[0], looks in ((100.0, 1), (101.0, 1), (100.0 + config_source.CLASS_INTERVAL, 2)):
        await source.read(age=0.0)
        assert api.looks == looks
    assert caplog.text.count("no rights to look whether PriorityClass recovery exists") == 1
    api.refusal = None
    moment[0] += config_source.CLASS_INTERVAL
    with pytest.raises(InvalidRecipeError, match="there is no PriorityClass recovery"):
        await source.read(age=0.0)


@pytest.mark.parametrize(
    ("value", "others", "usual"),
    [(0, [], 0), (-1, [], 0), (10, [priority_class("usual", 10, globalDefault=True)], 10)],
)
async def test_a_class_that_is_not_above_that_of_other_pods_is_refused(
    value: int, others: list[dict[str, Any]], usual: int
) -> None:
    api = PriorityClasses()
    api.classes = [priority_class("recovery", value), *others]
    source = source_of(api)
    with pytest.raises(InvalidRecipeError) as refused:
        await source.read()
    (error,) = refused.value.errors
    assert error.field == "platform.yaml.recoveryPriorityClassName"
    assert error.message == (
        f"PriorityClass recovery has the value {value}, and pods without a class have {usual}"
    )
    api.classes[0] = priority_class("recovery", usual + 1)
    assert (await source.read(age=0.0)).platform.recovery_priority_class_name == "recovery"


async def test_a_class_that_may_preempt_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    api = PriorityClasses()
    api.classes = [priority_class("recovery", preemptionPolicy="PreemptLowerPriority")]
    await source_of(api).read()
    assert "pods of PriorityClass recovery end pods of lower priority" in caplog.text


async def test_without_the_class_the_rules_for_nodes_apply() -> None:
    api = PriorityClasses()
    api.text += "\nbadNodes: {cordon: true, maxPerHour: 7}"
    used: Any = api
    status = StatusBuilder.of({"metadata": METADATA, "spec": {}}, 0.0)
    rules = await Cordoner(used, source_of(api)).rules(status)
    assert rules is not None
    assert (rules[0].cordon, rules[0].max_per_hour) == (True, 7)


async def test_a_mistake_in_the_file_changes_no_rules_for_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_source, "RECENT", 0.0)
    api = PriorityClasses()
    used: Any = api
    status = StatusBuilder.of({"metadata": METADATA, "spec": {}}, 0.0)
    source = source_of(api)
    cordoner = Cordoner(used, source)
    api.text = "badNodes: {maxPerHour: seven}"
    assert await cordoner.rules(status) is None, "no valid file is known"
    for number, (text, conditions) in enumerate(
        [
            ("{conditions: [], taints: [], startTimes: []}", []),
            ("{conditionz: []}", []),
            ("{conditions: [Leaving]}", ["Leaving"]),
        ]
    ):
        api.text, api.platform_version = f"maintenance: {text}", f"{number}"
        rules = await cordoner.rules(status)
        assert rules is not None
        assert rules[1].conditions == (await source.maintenance()).conditions == conditions


async def test_an_error_ends_with_the_file_that_has_it() -> None:
    api = PriorityClasses()
    source = source_of(api)
    api.text = ""
    await source.read()
    api.text, api.platform_version = "recoveryPriorityClassName: recovery", "2"
    with pytest.raises(InvalidRecipeError, match="there is no PriorityClass recovery"):
        await source.read(age=0.0)
    api.text, api.platform_version = "", "1"
    assert (await source.read(age=0.0)).platform.recovery_priority_class_name is None


async def test_a_priority_class_that_could_not_be_looked_for_is_looked_for_again() -> None:
    api = PriorityClasses()
    api.refusal = ApiError(503, "ServiceUnavailable", "try again")
    source = source_of(api)
    with pytest.raises(ApiError):
        await source.read()
    api.refusal = None
    with pytest.raises(InvalidRecipeError, match="there is no PriorityClass recovery"):
        await source.read()


def test_a_priority_class_of_pods_is_refused_with_volcano() -> None:
    text = "recoveryPriorityClassName: recovery\ngangScheduling: {scheduler: volcano}"
    with pytest.raises(InvalidRecipeError, match="Volcano takes runs by the priority of their PodGroup"):
        parse_platform(text, SOURCE)


def test_an_invalid_name_of_a_priority_class_is_refused() -> None:
    with pytest.raises(InvalidRecipeError, match=r"platform\.yaml\.recoveryPriorityClassName: invalid name"):
        parse_platform("recoveryPriorityClassName: A b", SOURCE)
