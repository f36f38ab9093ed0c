"""Values that YAML would take for something else: names that look like numbers."""

from collections.abc import Iterator
from typing import Any

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
