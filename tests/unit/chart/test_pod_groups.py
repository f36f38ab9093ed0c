"""The policy that assigns pods to PodGroups of Kubernetes, where its scheduler places gangs."""

from typing import Any

import pytest

KIND = "MutatingAdmissionPolicy"
KUBERNETES = {"platform": {"gangScheduling": {"scheduler": "kubernetes"}}}


def policies(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in objects if each["kind"] == KIND]


@pytest.mark.parametrize("options", [{}, {"platform": {"gangScheduling": {"scheduler": "volcano"}}}])
def test_pods_are_not_changed_where_another_scheduler_places_gangs(
    render: Any, options: dict[str, Any]
) -> None:
    assert policies(render(options)) == []


def test_only_pods_with_the_label_and_the_gate_are_changed(render: Any) -> None:
    objects = render(KUBERNETES)
    [policy] = policies(objects)
    [binding] = [each for each in objects if each["kind"] == f"{KIND}Binding"]
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    match = policy["spec"]["matchConstraints"]
    assert match["objectSelector"]["matchExpressions"] == [
        {"key": "megatron.training/pod-group", "operator": "Exists"}
    ]
    assert "namespaceSelector" not in match
    assert policy["spec"]["matchConditions"][0]["expression"].endswith(
        "gate.name == 'megatron.training/pod-group')"
    )


def test_a_namespaced_release_changes_pods_of_its_namespaces_alone(render: Any) -> None:
    [policy] = policies(render(KUBERNETES | {"watchNamespaces": ["a", "b"]}))
    [expression] = policy["spec"]["matchConstraints"]["namespaceSelector"]["matchExpressions"]
    assert expression == {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["a", "b"]}
