"""The validating webhook on a real API server: `kubectl apply` fails with the message of `megatron validate`.

The chart's configuration is used with another address: the control plane has no Service network, so the API
server calls the operator's process on this machine, with a certificate for that address.
"""

import json
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from localcluster import Cluster
from localcluster.pki import Authority, Certificate

from testkit.api_server import Api, Object
from testkit.chart_installation import CHART
from testkit.operator_process import OPERATOR_NAMESPACE, OperatorProcess
from testkit.ports import free_port
from testkit.waiting import wait_until
from tests.control_plane.test_refusals_by_the_api_server import REFUSALS, validate
from tests.control_plane.world import World

NAME = "megatron-operator-webhook"
CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/megatron-operator"


def rendered(cluster: Cluster, folder: Path) -> list[Object]:
    """The chart's objects as helm would install them in this cluster."""
    values = folder / "values.yaml"
    values.write_text(yaml.safe_dump({"webhook": {"enabled": True, "timeoutSeconds": 10}}))
    done = subprocess.run(
        [
            cluster.paths.binary("helm"), "template", "megatron-operator", CHART, "--values", values,
            "--namespace", OPERATOR_NAMESPACE, "--kubeconfig", cluster.kubeconfig, "--dry-run=server",
            "--kube-version", "1.36.3",
        ],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return [item for item in yaml.safe_load_all(done.stdout) if item]


def of_kind(objects: list[Object], kind: str) -> Object:
    return next(
        item for item in objects if item["kind"] == kind and NAME.startswith(item["metadata"]["name"])
    )


@pytest.fixture
def webhook(world: World, cluster: Cluster, tmp_path: Path) -> Iterator[OperatorProcess]:
    """The operator with its webhook, which validates recipes of the world's namespace only."""
    authority, port = Authority(tmp_path / "certificates"), free_port()
    authority.create()
    authority.sign(Certificate("tls", "webhook", hosts=("127.0.0.1",)))
    configuration = of_kind(rendered(cluster, tmp_path), "ValidatingWebhookConfiguration")
    [hook] = configuration["webhooks"]
    path = hook["clientConfig"]["service"]["path"]
    bundle = b64encode(authority.certificate.read_bytes()).decode()
    hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": bundle}
    hook["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": world.namespace}}
    world.api.request(
        "PATCH", CONFIGURATION, configuration, "application/apply-patch+yaml", fieldManager="tests"
    )
    world.operator.stop()
    process = world.operator.with_options(
        f"--webhook-port={port}", f"--webhook-certificates={authority.directory}"
    )
    process.start()
    wait_until(
        lambda: f"the webhook to listen; log: {process.log()[-2000:]}",
        lambda: "webhook listens" in process.log(),
    )
    yield process
    process.stop()
    world.api.request("DELETE", CONFIGURATION)


def recipe_of(name: str, namespace: str) -> Object:
    recipe: Object = yaml.safe_load(next(path for path in REFUSALS if path.stem == name).read_text())
    recipe["metadata"]["namespace"] = namespace
    recipe["spec"]["accelerator"]["type"] = "simulated"
    return recipe


def kubectl_apply(cluster: Cluster, recipe: Object) -> subprocess.CompletedProcess[str]:
    kubectl = [cluster.paths.binary("kubectl"), "--kubeconfig", cluster.kubeconfig, "apply", "-f", "-"]
    return subprocess.run(kubectl, input=json.dumps(recipe), text=True, capture_output=True, check=False)


@pytest.mark.usefixtures("webhook")
@pytest.mark.parametrize("name", ["several-at-once", "unknown-recipe"])
def test_kubectl_apply_fails_with_the_message_of_validate(
    name: str, world: World, cluster: Cluster, tmp_path: Path
) -> None:
    recipe = recipe_of(name, world.namespace)
    expected = validate(recipe, tmp_path)

    def refused() -> bool:
        # The API server uses a new webhook with a delay; until then it accepts the recipe.
        done = kubectl_apply(cluster, recipe)
        if done.returncode == 0:
            world.api.delete("MegatronRecipe", world.namespace, recipe["metadata"]["name"])
            return False
        assert "denied the request" in done.stderr
        return all(line in done.stderr for line in expected)

    wait_until("kubectl apply to fail with the message of validate", refused)
    assert world.api.list("MegatronRecipe", world.namespace) == []


@pytest.mark.usefixtures("webhook")
def test_a_recipe_that_can_be_planned_passes_and_runs(world: World) -> None:
    world.apply("run")
    world.wait_for("run", pods=2)


def test_while_the_webhook_is_down_the_status_reports_the_refusal(
    world: World, webhook: OperatorProcess, cluster: Cluster, tmp_path: Path
) -> None:
    webhook.stop()
    recipe = recipe_of("several-at-once", world.namespace)
    done = kubectl_apply(cluster, recipe)
    assert done.returncode == 0, done.stderr
    world.operator.start()
    state = world.wait_for(recipe["metadata"]["name"], conditions={"Planned": "Refused"})
    assert state.conditions["Planned"]["message"].splitlines() == validate(recipe, tmp_path)


def test_an_upgrade_keeps_the_certificate(api: Api, cluster: Cluster, tmp_path: Path, installed: str) -> None:
    assert installed
    first = of_kind(rendered(cluster, tmp_path), "Secret")
    path = f"/api/v1/namespaces/{OPERATOR_NAMESPACE}/secrets"
    api.request("POST", path, first)
    try:
        again = rendered(cluster, tmp_path)
        assert of_kind(again, "Secret")["data"] == first["data"]
        [hook] = of_kind(again, "ValidatingWebhookConfiguration")["webhooks"]
        assert hook["clientConfig"]["caBundle"] == first["data"]["ca.crt"]
    finally:
        api.request("DELETE", f"{path}/{NAME}")
