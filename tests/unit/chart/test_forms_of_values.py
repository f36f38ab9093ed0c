"""Values that YAML takes for something else: names that look like numbers, and sections without keys."""

from collections.abc import Iterator
from typing import Any

import pytest

NUMBER = "2024"
NUMBERS: dict[str, Any] = {
    "watchNamespaces": [NUMBER],
    "imagePullSecrets": [NUMBER],
    "operator": {"priorityClassName": NUMBER},
    "metrics": {
        "enabled": True,
        "prometheusOperator": {"monitors": True, "rules": True},
        "grafanaDashboard": {"enabled": True},
    },
    "webhook": {"enabled": True},
    "networkPolicy": {"enabled": True, "metricsFrom": [NUMBER], "apiServer": {"cidrs": ["::/0"]}},
    "ui": {
        "enabled": True,
        "tlsSecret": NUMBER,
        "allowFrom": [NUMBER],
        "archive": {"enabled": True, "storageClassName": NUMBER},
    },
    "platform": {"gangScheduling": {"scheduler": "kubernetes"}, "networkPolicies": {"enabled": True}},
    "catalog": {"own.yaml": "entries: {}\n"},
}


def leaves(value: Any) -> Iterator[Any]:
    """What a document has besides its maps and lists."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from leaves(each)
    else:
        yield value


def test_names_that_look_like_numbers_and_addresses_with_colons_stay_strings(render: Any) -> None:
    objects = render(NUMBERS, NUMBER)
    found = list(leaves(objects))
    assert "::/0" in found
    assert NUMBER in found
    assert int(NUMBER) not in found
    namespaced = {each["metadata"]["namespace"] for each in objects if "namespace" in each["metadata"]}
    assert namespaced == {NUMBER}


@pytest.mark.parametrize("platform", [None, {"gangScheduling": None}])
def test_a_platform_without_keys_or_gang_scheduling_is_that_of_the_default(
    platform: dict[str, Any] | None, render: Any
) -> None:
    def others(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [each for each in objects if each["metadata"]["name"] != "megatron-platform"]

    assert others(render({"ui": {"enabled": True}, "platform": platform})) == others(
        render({"ui": {"enabled": True}})
    )


@pytest.mark.parametrize(
    "section", ["crd", "operator", "admissionPolicy", "metrics", "tracing", "ui", "networkPolicy", "webhook"]
)
def test_another_section_without_keys_is_refused_by_its_name(section: str, render: Any) -> None:
    with pytest.raises(ValueError, match=f"missing property '{section}'"):
        render({section: None})
