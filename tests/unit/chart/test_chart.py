"""The objects that the chart installs, and the values that it refuses."""

import contextlib
import re
import ssl
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
import yaml
from megatron_operator.controller import leader_check
from megatron_operator.controller.config_source import PLATFORM_KEY, parse_platform
from megatron_operator.controller.handlers import LAST_RECONCILES
from megatron_operator.controller.main import main as operator_command
from megatron_operator.controller.process import LAST_REVIEWS, LAST_WATCHES
from megatron_operator.controller.settings import LeaseTimes

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts" / "megatron-operator"
SIMULATED = CHART / "values-local-simulated.yaml"

CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "namespaced": {"watchNamespaces": ["research", "teaching"], "crd": {"install": False}},
    "metrics-and-catalog": {
        "metrics": {"enabled": True},
        "catalog": {"own.yaml": "entries: {}\n"},
        "imagePullSecrets": ["registry"],
        "operator": {"priorityClassName": "system-cluster-critical", "nodeSelector": {"pool": "system"}},
    },
    "webhook": {
        "webhook": {"enabled": True, "certManager": {"enabled": True}, "failurePolicy": "Fail"},
        "watchNamespaces": ["research"],
    },
    "network-policies": {
        "networkPolicy": {"enabled": True, "metricsFrom": ["monitoring"]},
        "metrics": {"enabled": True},
        "webhook": {"enabled": True, "certManager": {"enabled": True}},
        "platform": {"networkPolicies": {"enabled": True, "metricsFrom": ["monitoring"]}},
    },
    "ui": {
        "ui": {"enabled": True, "logs": True, "tlsSecret": "page", "allowFrom": ["ingress"]},
        "networkPolicy": {"enabled": True},
        "platform": {"accelerators": {"h100": {}}},
        "catalog": {"own.yaml": "entries: {}\n"},
    },
    "ui-namespaced": {"ui": {"enabled": True}, "watchNamespaces": ["research"]},
}


def of_kind(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    return next(item for item in objects if item["kind"] == kind and item["metadata"]["name"] == name)


def test_helm_lint_reports_no_problem(helm: Any) -> None:
    done = helm("lint", str(CHART), "--strict", "--values", str(SIMULATED))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("case", CASES)
def test_rendered_objects_match_the_golden_files(case: str, render: Any, golden: Any) -> None:
    objects = [item for item in render(CASES[case]) if item["kind"] != "CustomResourceDefinition"]
    golden.check(f"chart/{case}.yaml", yaml.safe_dump_all(objects, sort_keys=False, width=110))


def test_the_chart_installs_the_generated_crd_and_keeps_it_on_uninstall(render: Any) -> None:
    installed = of_kind(render({}), "CustomResourceDefinition", "megatronrecipes.megatron.training")
    assert installed["metadata"].pop("annotations")["helm.sh/resource-policy"] == "keep"
    generated = yaml.safe_load((ROOT / "crds" / "megatronrecipes.yaml").read_text())
    generated["metadata"].pop("annotations", None)
    assert installed == generated


@pytest.mark.parametrize("case", CASES)
def test_roles_have_no_wildcards_no_exec_and_cannot_read_secrets(case: str, render: Any) -> None:
    roles = [item for item in render(CASES[case]) if item["kind"] in ("Role", "ClusterRole")]
    assert roles
    for rule in (rule for role in roles for rule in role["rules"]):
        granted = [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        assert "*" not in granted
        assert "secrets" not in granted or rule["verbs"] == ["create"]
        assert not {"pods/exec", "pods/proxy", "bind", "escalate", "impersonate"} & set(granted)


def test_the_operator_may_patch_nodes_only_with_cordoning_enabled(render: Any) -> None:
    def verbs(values: dict[str, Any]) -> set[str]:
        role = of_kind(render(values), "ClusterRole", "megatron-operator")
        return {verb for rule in role["rules"] if "nodes" in rule["resources"] for verb in rule["verbs"]}

    assert verbs({}) == {"list", "watch"}
    assert verbs({"platform": {"badNodes": {"cordon": True}}}) == {"list", "watch", "patch"}


def test_a_namespaced_operator_has_no_rights_outside_its_namespaces(render: Any) -> None:
    objects = render(CASES["namespaced"] | {"aggregateRoles": False})
    assert not [item for item in objects if item["kind"].startswith("Cluster")]
    assert {item["metadata"]["namespace"] for item in objects if item["kind"] == "Role"} == {
        "research",
        "teaching",
        "megatron-system",
    }


def test_the_operators_network_policy_allows_every_port_that_its_pod_listens_on(render: Any) -> None:
    objects = render(CASES["network-policies"])
    deployment = of_kind(objects, "Deployment", "megatron-operator")["spec"]
    policy = of_kind(objects, "NetworkPolicy", "megatron-operator")["spec"]
    [container] = deployment["template"]["spec"]["containers"]
    listens = {port["containerPort"] for port in container["ports"] if port["name"] != "health"}
    assert listens == {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    labels = deployment["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize("on_nodes", [False, True])
def test_the_operator_reaches_runs_at_the_addresses_of_their_nodes_if_pods_have_the_network_of_the_host(
    on_nodes: bool, render: Any
) -> None:
    profiles = {"a100": {}, "h100": {"podTemplate": {"hostNetwork": on_nodes}}, "l40s": {"podTemplate": {}}}
    objects = render({"networkPolicy": {"enabled": True}, "platform": {"accelerators": profiles}})
    egress = of_kind(objects, "NetworkPolicy", "megatron-operator")["spec"]["egress"]
    [rule] = [rule for rule in egress if {"protocol": "TCP", "port": 8432} in rule["ports"]]
    assert ("to" not in rule) == on_nodes


def test_runs_admit_the_operator_of_the_releases_namespace(render: Any) -> None:
    values = CASES["network-policies"]
    config_map = of_kind(render(values, "training"), "ConfigMap", "megatron-platform")
    platform = parse_platform(config_map["data"][PLATFORM_KEY], "the chart")
    assert platform.network_policies.operator_namespace == "training"
    assert platform.network_policies.metrics_from == ["monitoring"]


def test_without_the_option_there_is_no_network_policy_and_no_right_to_create_one(render: Any) -> None:
    objects = render({})
    assert not [item for item in objects if item["kind"] == "NetworkPolicy"]
    rules = of_kind(objects, "ClusterRole", "megatron-operator")["rules"]
    [rule] = [rule for rule in rules if "networkpolicies" in rule["resources"]]
    assert rule["verbs"] == ["list", "delete"], "for what is left of runs that began with the option"


def test_two_namespaced_releases_share_no_object_outside_their_namespaces(render: Any) -> None:
    def names(namespace: str) -> set[tuple[str, str]]:
        values = {
            "watchNamespaces": [f"{namespace}-runs"],
            "crd": {"install": False},
            "webhook": {"enabled": True},
        }
        objects = render(values, namespace)
        return {
            (item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"])
            for item in objects
        }

    assert names("research")
    assert not names("research") & names("teaching")


@pytest.mark.parametrize(("kubernetes", "selectable"), [("1.30.4", False), ("1.31.0", True)])
def test_fields_are_selectable_where_the_api_server_knows_it(
    kubernetes: str, selectable: bool, render: Any
) -> None:
    objects = render({}, kubernetes=kubernetes)
    crd = of_kind(objects, "CustomResourceDefinition", "megatronrecipes.megatron.training")
    assert ("selectableFields" in crd["spec"]["versions"][0]) == selectable


def test_the_replicas_elect_a_leader_with_a_lease_that_their_role_allows(render: Any) -> None:
    objects = render({})
    deployment = of_kind(objects, "Deployment", "megatron-operator")["spec"]
    [container] = deployment["template"]["spec"]["containers"]
    assert deployment["replicas"] == 2
    assert "--leader-elect" in container["args"]
    rules = of_kind(objects, "Role", "megatron-operator-platform")["rules"]
    named = [rule for rule in rules if rule["resources"] == ["leases"] and "resourceNames" in rule]
    [name] = named[0]["resourceNames"]
    assert f"--leader-elect-resource-name={name}" in container["args"]
    assert named[0]["verbs"] == ["get", "update"]


def test_a_drain_takes_one_replica_at_a_time_and_is_never_blocked(render: Any) -> None:
    budget = of_kind(render({}), "PodDisruptionBudget", "megatron-operator")["spec"]
    assert budget["maxUnavailable"] == 1
    single = render({"operator": {"replicas": 1}})
    assert not [item for item in single if item["kind"] == "PodDisruptionBudget"]


def test_the_handover_fits_into_the_termination_grace_period(render: Any) -> None:
    pod = of_kind(render({}), "Deployment", "megatron-operator")["spec"]["template"]["spec"]
    release = LeaseTimes().renew_deadline / 2
    handover = LAST_RECONCILES + release + LAST_WATCHES
    assert max(handover, LAST_REVIEWS) < pod["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("case", CASES)
def test_the_operator_accepts_every_argument_of_the_deployment(case: str, render: Any) -> None:
    deployment = of_kind(render(CASES[case]), "Deployment", "megatron-operator")
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    operator_command.make_context("megatron-operator", list(arguments))


@pytest.mark.parametrize("case", ["default", "namespaced"])
def test_helm_test_runs_a_command_that_the_operator_has(case: str, render: Any) -> None:
    pod = of_kind(render(CASES[case]), "Pod", "megatron-operator-test")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["python", "-m", leader_check.__name__]
    options = leader_check.main.make_context("leader_check", list(container["args"])).params
    assert options["lease"] == "megatron-operator-leader"
    assert options["recipes_of"] == (CASES[case].get("watchNamespaces") or [None])[0]


def test_the_operator_passes_pod_security_restricted(render: Any) -> None:
    pod = of_kind(render({}), "Deployment", "megatron-operator")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    security = pod["containers"][0]["securityContext"]
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}


def test_the_webhook_is_disabled_by_default(render: Any) -> None:
    objects = render({})
    assert not [item for item in objects if item["kind"] in ("ValidatingWebhookConfiguration", "Secret")]


def test_the_ca_bundle_verifies_the_certificate_that_the_chart_creates(render: Any, tmp_path: Path) -> None:
    objects = render({"webhook": {"enabled": True}})
    secret = of_kind(objects, "Secret", "megatron-operator-webhook")["data"]
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).write_bytes(b64decode(secret[name]))
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    configuration = of_kind(objects, "ValidatingWebhookConfiguration", "megatron-operator")
    client = configuration["webhooks"][0]["clientConfig"]
    trusting = ssl.create_default_context(cadata=b64decode(client["caBundle"]).decode())
    shake_hands(server, trusting, f"{client['service']['name']}.{client['service']['namespace']}.svc")


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> None:
    """A TLS handshake in memory. Raises ssl.SSLError if the client does not trust the server."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while ends:
        for end in list(ends):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
                ends.remove(end)


def test_the_webhook_port_and_certificate_match_its_service(render: Any) -> None:
    objects = render({"webhook": {"enabled": True}})
    [port] = of_kind(objects, "Service", "megatron-operator-webhook")["spec"]["ports"]
    pod = of_kind(objects, "Deployment", "megatron-operator")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert f"--webhook-port={ports[port['targetPort']]}" in container["args"]
    [folder] = [each["mountPath"] for each in container["volumeMounts"] if each["name"] == "certificates"]
    assert f"--webhook-certificates={folder}" in container["args"]


def test_the_operator_parses_the_platform_of_the_simulated_values(render: Any) -> None:
    config_map = of_kind(render(SIMULATED), "ConfigMap", "megatron-platform")
    platform = parse_platform(config_map["data"][PLATFORM_KEY], "the chart")
    assert platform.accelerators["cpu"].platform == "cpu"
    assert platform.wire() == yaml.safe_load(SIMULATED.read_text())["platform"] | platform.wire()


def test_images_may_be_named_by_digest(render: Any) -> None:
    digest = f"@sha256:{'0' * 64}"
    values = {
        "image": f"registry.example/operator{digest}",
        "platform": {"image": f"registry.example/trainer{digest}"},
        "ui": {"enabled": True},
    }
    objects = render(values)
    deployments = [item for item in objects if item["kind"] == "Deployment"]
    assert len(deployments) == 2, "operator and page"
    for each in deployments:
        (container,) = each["spec"]["template"]["spec"]["containers"]
        assert container["image"] == values["image"]
    config_map = of_kind(objects, "ConfigMap", "megatron-platform")
    assert parse_platform(config_map["data"][PLATFORM_KEY], "the chart").image == values["platform"]["image"]


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({"imge": "typo"}, "imge"),
        ({"image": ""}, "/image"),
        ({"watchNamespaces": "research"}, "/watchNamespaces"),
        ({"watchNamespaces": ["Research"]}, "/watchNamespaces/0"),
        ({"operator": {"workers": 0}}, "/operator/workers"),
        ({"operator": {"logLevel": "LOUD"}}, "/operator/logLevel"),
        ({"platform": {"accelerator": {}}}, "/platform"),
        ({"platform": {"accelerators": {"h100": {"perNode": 0}}}}, "/platform/accelerators/h100/perNode"),
        (
            {"platform": {"accelerators": {"h100": {"platform": "tpu"}}}},
            "/platform/accelerators/h100/platform",
        ),
        ({"platform": {"checkpoint": {"size": "2 TB"}}}, "/platform/checkpoint/size"),
        ({"catalog": {"own.json": ""}}, "at '/catalog': additional properties 'own.json' not allowed"),
        ({"metrics": {"port": 80}}, "/metrics/port"),
        ({"networkPolicy": {"apiServer": {"ports": []}}}, "/networkPolicy/apiServer/ports"),
        ({"networkPolicy": {"apiServer": {"cidrs": ["10.0.0.1"]}}}, "/networkPolicy/apiServer/cidrs/0"),
        ({"platform": {"networkPolicies": {"enable": True}}}, "/platform/networkPolicies"),
        ({"platform": {"hub": {"endpoint": "user:pass@hub"}}}, "/platform/hub/endpoint"),
        ({"ui": {"port": 443}}, "/ui/port"),
        ({"webhook": {"failurePolicy": "Warn"}}, "/webhook/failurePolicy"),
        ({"webhook": {"certmanager": {}}}, "certmanager"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_values_are_refused_with_their_path(values: dict[str, Any], where: str, render: Any) -> None:
    with pytest.raises(ValueError, match="values don't meet the specifications") as refused:
        render(values)
    assert where in str(refused.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"webhook": {"enabled": True, "port": 8080}}, "webhook.port: 8080 is the port of the health probes"),
        ({"metrics": {"enabled": True, "port": 8080}}, "metrics.port: 8080 is the port of the health probes"),
        (
            {"metrics": {"enabled": True}, "webhook": {"enabled": True, "port": 9090}},
            "webhook.port: 9090 is the port of metrics.port",
        ),
    ],
)
def test_ports_of_one_pod_differ(values: dict[str, Any], message: str, render: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        render(values)


def test_the_port_of_what_is_disabled_is_free(render: Any) -> None:
    render({"metrics": {"enabled": False}, "webhook": {"enabled": True, "port": 9090}})
