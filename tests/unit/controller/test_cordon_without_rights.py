"""Nodes that the platform asks to cordon, where the operator may not."""

import logging
from typing import Any

import pytest
from megatron_operator.api.platform import BadNodes
from megatron_operator.controller.api_client import ApiError
from megatron_operator.controller.config_source import ConfigSource
from megatron_operator.controller.cordoner import Cordoner
from megatron_operator.controller.settings import Settings
from megatron_operator.lifecycle.status_builder import StatusBuilder


class WithoutRights:
    """Stands in for the API client of a release without rights on nodes."""

    def __init__(self, error: ApiError) -> None:
        self.error = error

    async def find(self, _resource: object, _namespace: None, **_selectors: str) -> list[Any]:
        raise self.error

    async def get(self, _kind: object, _namespace: str, name: str) -> dict[str, Any] | None:
        if name != "megatron-platform":
            return None
        return {"metadata": {"resourceVersion": "1"}, "data": {"platform.yaml": "badNodes: {cordon: true}"}}


async def cordon(error: ApiError, *, requested: bool = True, namespaced: bool = False) -> list[Any]:
    api: Any = WithoutRights(error)
    body = {"metadata": {"name": "run", "namespace": "default", "uid": "u", "generation": 1}}
    status = StatusBuilder.of(body, 0.0)
    await Cordoner(api, ConfigSource(api, Settings()), namespaced=namespaced).cordon(
        status, ("n1",), BadNodes(cordon=requested), pool=2
    )
    return status.events


FORBIDDEN = ApiError(403, "Forbidden", 'nodes is forbidden: cannot list resource "nodes"')


@pytest.mark.parametrize(
    ("namespaced", "advice"),
    [
        (
            True,
            "set platform.badNodes.cordon to false, or use a release without watchNamespaces, which has "
            "rights on nodes",
        ),
        (
            False,
            "run helm upgrade with platform.badNodes.cordon: true, which gives the operator rights on nodes",
        ),
    ],
)
async def test_a_node_that_may_not_be_cordoned_is_an_event_of_the_recipe(
    namespaced: bool, advice: str
) -> None:
    [event] = await cordon(FORBIDDEN, namespaced=namespaced)
    assert (event.reason, event.warning) == ("NodeNotCordoned", True)
    assert event.message == (
        "this run avoids node n1, but it is not cordoned: nodes is forbidden: cannot list resource "
        f'"nodes"; {advice}'
    )


async def test_a_policy_that_refuses_to_cordon_is_no_lack_of_rights() -> None:
    denied = "nodes \"n1\" is forbidden: ValidatingAdmissionPolicy 'nodes' denied request: protected"
    [event] = await cordon(ApiError(403, "Forbidden", denied))
    assert event.message.endswith("protected")


async def test_a_node_that_is_gone_is_no_event() -> None:
    assert await cordon(ApiError(404, "NotFound", "node n1 does not exist")) == []


async def test_without_the_platforms_request_nothing_is_cordoned_or_reported() -> None:
    assert await cordon(FORBIDDEN, requested=False) == []


@pytest.mark.parametrize(("namespaces", "warnings"), [(("team",), 1), ((), 0)])
async def test_a_release_without_rights_on_nodes_warns_when_it_reads_the_platform_file(
    namespaces: tuple[str, ...], warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    api: Any = WithoutRights(FORBIDDEN)
    with caplog.at_level(logging.WARNING):
        await ConfigSource(api, Settings(watch_namespaces=namespaces)).read()
    assert sum("none is cordoned" in line for line in caplog.messages) == warnings
