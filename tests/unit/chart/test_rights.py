"""docs/security.md justifies every right that the chart grants, and no other."""

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "security.md"
OPERATOR_ROLES = {"megatron-operator", "megatron-operator-platform"}
CORDON = {"platform": {"badNodes": {"cordon": True}}}
EVERYTHING = {
    "platform": {
        "badNodes": {"cordon": True},
        "accelerators": {"gb200": {"computeDomain": True}},
        "gangScheduling": {"scheduler": "kubernetes"},
        "recoveryPriorityClassName": "recovery",
    }
}


def granted(objects: list[dict[str, Any]]) -> dict[str, set[str]]:
    """Resource with its group -> verbs, over all roles of the operator."""
    rights: dict[str, set[str]] = defaultdict(set)
    for role in objects:
        if role["kind"] in ("Role", "ClusterRole") and role["metadata"]["name"] in OPERATOR_ROLES:
            for rule in role["rules"]:
                for group in rule["apiGroups"]:
                    for resource in rule["resources"]:
                        rights[f"{resource}.{group}" if group else resource] |= set(rule["verbs"])
    return dict(rights)


def justified() -> dict[str, set[str]]:
    """The table of rights on the page; each row has a reason."""
    text = PAGE.read_text().split("## Rights of the operator")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| ([a-z, ]+) \| (\S.*) \|$", text, re.MULTILINE)
    return {resource: set(verbs.split(", ")) for resource, verbs, _ in rows}


def test_every_right_of_the_chart_is_justified_on_the_page(render: Any) -> None:
    rights: dict[str, set[str]] = defaultdict(set)
    for backend in ("jobset", "trainjob"):
        options = EVERYTHING["platform"] | {"networkPolicies": {"enabled": True}, "jobBackend": backend}
        for resource, verbs in granted(render({"platform": options})).items():
            rights[resource] |= verbs
    assert rights == justified()


@pytest.mark.parametrize(
    ("values", "verbs"),
    [
        ({}, None),
        ({"platform": {"jobBackend": "pytorchjob"}}, None),
        ({"jobSets": True}, {"get", "list", "watch", "delete"}),
        ({"platform": {"jobBackend": "jobset"}}, {"get", "list", "watch", "delete", "create"}),
    ],
)
def test_rights_on_jobsets_need_the_backend_or_the_option(
    render: Any, values: dict[str, Any], verbs: set[str] | None
) -> None:
    objects = render(values)
    assert granted(objects).get("jobsets.jobset.x-k8s.io") == verbs
    [deployment] = [each for each in objects if each["kind"] == "Deployment"]
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert ("--jobsets" in arguments) == (verbs is not None)
    [policy] = [each for each in objects if each["kind"] == "ValidatingAdmissionPolicy"]
    rules = policy["spec"]["matchConstraints"]["resourceRules"]
    assert (["jobsets"] in [rule["resources"] for rule in rules]) == (verbs is not None)
    checks = [rule["expression"] for rule in policy["spec"]["validations"]]
    assert any("'jobsets'" in each for each in checks) == (verbs is not None)


@pytest.mark.parametrize(
    ("values", "jobs", "runtimes", "jobsets"),
    [
        ({}, None, None, None),
        ({"trainJobs": True}, {"get", "list", "watch", "delete"}, {"get", "delete"}, None),
        (
            {"platform": {"jobBackend": "trainjob"}},
            {"get", "list", "watch", "delete", "create"},
            {"get", "create", "update", "delete"},
            {"get"},
        ),
    ],
)
def test_rights_on_trainjobs_need_the_backend_or_the_option(
    render: Any,
    values: dict[str, Any],
    jobs: set[str] | None,
    runtimes: set[str] | None,
    jobsets: set[str] | None,
) -> None:
    objects = render(values)
    rights = granted(objects)
    assert rights.get("trainjobs.trainer.kubeflow.org") == jobs
    assert rights.get("trainingruntimes.trainer.kubeflow.org") == runtimes
    assert rights.get("jobsets.jobset.x-k8s.io") == jobsets
    [deployment] = [each for each in objects if each["kind"] == "Deployment"]
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert ("--trainjobs" in arguments) == (jobs is not None)
    [policy] = [each for each in objects if each["kind"] == "ValidatingAdmissionPolicy"]
    checks = [rule["expression"] for rule in policy["spec"]["validations"]]
    for resource in ("trainjobs", "trainingruntimes"):
        assert any(f"'{resource}'" in each for each in checks) == (jobs is not None)


def test_a_patch_of_a_trainjob_is_checked_field_by_field_because_reading_a_missing_one_denies_it(
    render: Any,
) -> None:
    objects = render({"platform": {"jobBackend": "trainjob"}})
    [policy] = [each for each in objects if each["kind"] == "ValidatingAdmissionPolicy"]
    [check] = [
        each["expression"] for each in policy["spec"]["validations"] if "runtimePatches" in each["expression"]
    ]
    tested = re.findall(r"has\(patch\.([\w.]+)\)", check)
    for number, field in enumerate(tested):
        parent = field.rpartition(".")[0]
        assert not parent or (f"!has(patch.{parent}) ||" in check and parent in tested[:number]), field
    assert {each.rpartition(".")[2] for each in tested} >= {"metadata", "replicatedJobs"}


def test_rights_on_priority_classes_need_the_option_and_a_cluster_wide_release(render: Any) -> None:
    with_class = {"platform": {"recoveryPriorityClassName": "recovery"}}
    resource = "priorityclasses.scheduling.k8s.io"
    assert granted(render(with_class))[resource] == {"list"}
    assert resource not in granted(render({}))
    assert resource not in granted(render({**with_class, "watchNamespaces": ["research"]}))


@pytest.mark.parametrize(
    ("values", "granted_any"),
    [
        ({}, True),
        ({"platform": {"maintenance": {"taints": []}}}, True),
        ({"platform": {"maintenance": {"deviceTaints": False}}}, False),
        ({"nodeDiscovery": False}, False),
        ({"watchNamespaces": ["research"]}, False),
    ],
)
def test_rights_on_devices_need_the_discovery_of_nodes_and_the_option(
    render: Any, values: dict[str, Any], granted_any: bool
) -> None:
    rights = {name: verbs for name, verbs in granted(render(values)).items() if "resource.k8s.io" in name}
    assert bool(rights) == granted_any
    assert not {"create", "update", "patch", "delete"} & set().union(*rights.values())


def test_a_namespaced_release_has_no_other_rights(render: Any) -> None:
    page = justified()
    rights = granted(render({"watchNamespaces": ["research"]}))
    assert "nodes" not in rights
    assert all(verbs <= page[resource] for resource, verbs in rights.items())


def test_a_namespaced_release_refuses_cordoning_instead_of_ignoring_it(render: Any) -> None:
    with pytest.raises(ValueError, match=r"platform\.badNodes\.cordon: true needs rights on nodes"):
        render({"watchNamespaces": ["research"], **CORDON})


def test_the_tests_that_the_page_names_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", PAGE.read_text())
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("values", [{}, {"watchNamespaces": ["research"]}])
def test_owners_of_claims_may_be_changed_where_that_needs_delete_and_no_claim_be_deleted(
    render: Any, values: dict[str, Any]
) -> None:
    """OwnerReferencesPermissionEnforcement asks the roles, not the admission policy."""
    objects = render(values)
    assert granted(objects)["persistentvolumeclaims"] == {"get", "create", "patch", "delete"}
    assert "request.resource.resource != 'persistentvolumeclaims' || request.operation != 'DELETE'" in (
        validations(objects)
    )


def test_checks_of_nodes_need_no_other_right_and_one_namespace_alone(render: Any) -> None:
    checks = {"platform": {"badNodes": {"cordon": True, "uncordonByCheck": True}}}
    assert granted(render(checks)) == granted(render(CORDON))
    [(old, new)] = [
        pair for pair in zip(validations(render(CORDON)), validations(render(checks)), strict=True)
        if pair[0] != pair[1]
    ]  # fmt: skip
    assert "request.operation == 'DELETE'" in old, "what may be created"
    assert new.startswith(old)
    assert_check_of_a_node(new.removeprefix(old))


def test_checks_that_are_left_may_be_deleted_once_checks_are_switched_off(render: Any) -> None:
    recipe = "'megatron.training/recipe' in oldObject.metadata.labels"
    [rule] = [rule for rule in validations(render({})) if recipe in rule]
    assert_check_of_a_node(rule.split(recipe)[1])


def validations(objects: list[dict[str, Any]]) -> list[str]:
    """The expressions of the admission policy."""
    [policy] = [each for each in objects if each["kind"] == "ValidatingAdmissionPolicy"]
    return [rule["expression"] for rule in policy["spec"]["validations"]]


def assert_check_of_a_node(clause: str) -> None:
    assert clause.startswith(" || ")
    assert "'megatron.training/node-check' in " in clause
    assert clause.endswith("request.resource.resource == 'jobs' && request.namespace == 'megatron-system'")


def test_the_account_of_0_2_0_stays_without_rights_so_that_an_upgrade_takes_them_and_a_rollback_returns_them(
    render: Any,
) -> None:
    objects = render({"watchNamespaces": ["team-a"]}) + render({"ui": {"enabled": True}})
    accounts = {each["metadata"]["name"] for each in objects if each["kind"] == "ServiceAccount"}
    bound = {
        subject["name"]
        for each in objects
        if each["kind"] in ("RoleBinding", "ClusterRoleBinding")
        for subject in each["subjects"]
    }
    assert "megatron-operator" in accounts
    assert "megatron-operator" not in bound
    assert "megatron-operator-controller" in accounts & bound
