"""The web page's Deployment, its rights and its network policy."""

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from megatron_operator.lifecycle.usage_records import CONFIG_MAPS
from megatron_operator.ui.command import command as page_command

PAGE = Path(__file__).parents[3] / "docs" / "security.md"
ENABLED: dict[str, Any] = {"ui": {"enabled": True}}
EVERYTHING: dict[str, Any] = {
    "ui": {
        "enabled": True,
        "logs": True,
        "tlsSecret": "page",
        "allowFrom": ["ingress"],
        "archive": {"enabled": True, "size": "3Gi", "storageClassName": "fast"},
    },
    "networkPolicy": {"enabled": True, "apiServer": {"cidrs": ["10.0.0.0/8"]}},
    "platform": {"accelerators": {"h100": {}}},
    "catalog": {"own.yaml": "entries: {}\n"},
}


def of_page(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [
        each
        for each in objects
        if each["kind"] == kind and each["metadata"]["name"].startswith("megatron-ui")
    ]


def rights(objects: list[dict[str, Any]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for role in [*of_page(objects, "ClusterRole"), *of_page(objects, "Role")]:
        for rule in role["rules"]:
            for resource in rule["resources"]:
                group = rule["apiGroups"][0]
                found[f"{resource}.{group}" if group else resource] |= set(rule["verbs"])
    return dict(found)


def test_the_page_is_off_by_default(render: Any) -> None:
    assert not [each for each in render({}) if each["metadata"]["name"].startswith("megatron-ui")]


def test_every_right_of_the_page_is_justified_in_the_docs(render: Any) -> None:
    text = PAGE.read_text().split("## Rights of the web page")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| ([a-z, ]+) \| (\S.*) \|$", text, re.MULTILINE)
    assert rights(render(EVERYTHING)) == {resource: set(verbs.split(", ")) for resource, verbs, _ in rows}


def test_the_page_may_change_nothing_and_reads_no_secret(render: Any) -> None:
    for resource, verbs in rights(render(EVERYTHING)).items():
        reviews = resource.startswith(("tokenreviews.", "subjectaccessreviews."))
        assert verbs <= ({"create"} if reviews else {"get", "list", "watch"})
        assert not resource.startswith("secrets")


def test_logs_are_readable_only_with_the_option(render: Any) -> None:
    assert "pods/log" not in rights(render(ENABLED))


def test_a_namespaced_page_reads_recipes_and_pods_only_in_its_namespaces(render: Any) -> None:
    objects = render(ENABLED | {"watchNamespaces": ["research", "teaching"]})
    [cluster_role] = of_page(objects, "ClusterRole")
    resources = {each for rule in cluster_role["rules"] for each in rule["resources"]}
    assert resources == {"tokenreviews", "subjectaccessreviews"}
    roles = {each["metadata"]["namespace"]: each for each in of_page(objects, "Role")}
    assert set(roles) == {"research", "teaching", "megatron-system"}
    [own] = roles["megatron-system"]["rules"]
    assert own["resourceNames"] == list(CONFIG_MAPS)
    [deployment] = of_page(objects, "Deployment")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert "--watch-namespaces=research,teaching" in container["args"]


def test_the_pages_pods_are_not_among_those_of_the_operators_selectors(render: Any) -> None:
    objects = render(EVERYTHING | {"metrics": {"enabled": True}})
    [deployment] = of_page(objects, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"].items()
    operator = next(each for each in objects if each["metadata"]["name"] == "megatron-operator-metrics")
    assert not operator["spec"]["selector"].items() <= labels
    [service] = of_page(objects, "Service")
    assert service["spec"]["selector"].items() <= labels


def test_the_page_passes_pod_security_restricted(render: Any) -> None:
    [deployment] = of_page(render(EVERYTHING), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    security = pod["containers"][0]["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("values", [ENABLED, EVERYTHING, ENABLED | {"watchNamespaces": ["research"]}])
def test_the_command_accepts_every_argument_of_the_deployment(values: dict[str, Any], render: Any) -> None:
    [deployment] = of_page(render(values), "Deployment")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["megatron", "ui"]
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    files = [each.split("=")[1] for each in container["args"] if "=/" in each]
    assert all(f"/{file.split('/')[1]}" in mounted for file in files)
    # Files exist only in the pod; that of the archive is opened after the cluster was found.
    arguments = [each for each in container["args"] if "=/" not in each or each.startswith("--archive=")]
    found = CliRunner().invoke(page_command, [*arguments, "--kubeconfig", "/missing"])
    assert "no cluster is configured (/missing)" in found.output


def test_the_archive_is_on_a_claim_that_one_pod_at_a_time_writes_and_that_outlives_the_release(
    render: Any,
) -> None:
    objects = render(EVERYTHING)
    [claim], [deployment] = of_page(objects, "PersistentVolumeClaim"), of_page(objects, "Deployment")
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["spec"]["resources"]["requests"] == {"storage": "3Gi"}
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    pod = deployment["spec"]["template"]["spec"]
    [volume] = [each for each in pod["volumes"] if "persistentVolumeClaim" in each]
    assert volume["persistentVolumeClaim"] == {"claimName": claim["metadata"]["name"]}
    [container] = pod["containers"]
    [mount] = [each for each in container["volumeMounts"] if each["name"] == volume["name"]]
    assert f"--archive={mount['mountPath']}/runs.sqlite" in container["args"]
    assert "--archive-size=3Gi" in container["args"]


def test_the_archive_is_off_by_default_and_on_the_default_storage_class_when_enabled(render: Any) -> None:
    objects = render(ENABLED)
    assert of_page(objects, "PersistentVolumeClaim") == []
    [claim] = of_page(
        render({"ui": {"enabled": True, "archive": {"enabled": True}}}), "PersistentVolumeClaim"
    )
    assert "storageClassName" not in claim["spec"]


def test_the_archive_can_be_enabled_later_by_a_server_side_apply(render: Any) -> None:
    """Without a strategy the API server fills in rollingUpdate, with which it refuses any other."""
    [deployment] = of_page(render(ENABLED), "Deployment")
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}


@pytest.mark.parametrize("size", ["1Mi", "63Mi", "67M", "0Gi", "0.01Gi", "064Mi", "000Mi"])
def test_an_archive_that_is_too_small_is_refused(size: str, render: Any) -> None:
    with pytest.raises(ValueError, match=r"archive[./]size"):
        render({"ui": {"enabled": True, "archive": {"enabled": True, "size": size}}})


@pytest.mark.parametrize("size", ["64Mi", "68M", "128Mi", "0.5Gi", "2Gi", "1.5Ti"])
def test_an_archive_of_at_least_64_mebibytes_is_accepted(size: str, render: Any) -> None:
    values = {"ui": {"enabled": True, "archive": {"enabled": True, "size": size}}}
    (claim,) = of_page(render(values), "PersistentVolumeClaim")
    assert claim["spec"]["resources"]["requests"]["storage"] == size


def test_the_network_policy_admits_the_port_that_the_page_listens_on(render: Any) -> None:
    objects = render(EVERYTHING)
    [policy], [deployment] = of_page(objects, "NetworkPolicy"), of_page(objects, "Deployment")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    [rule] = policy["spec"]["ingress"]
    assert [each["port"] for each in rule["ports"]] == [each["containerPort"] for each in container["ports"]]
    assert f"--port={rule['ports'][0]['port']}" in container["args"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
