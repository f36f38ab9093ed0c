"""Pods with the image of Megatron-Bridge that run one command on the volumes of a fine-tuning run."""

from pathlib import Path
from typing import Any

from localcluster.images import BRIDGE_TRAINER

from testkit import image_text
from testkit.errors import CommandFailedError
from testkit.kubectl import Kubectl

SCRIPTS = "scripts"
NAMES = ("model_and_answers", "merged_losses", "loss_of_chats", "loss_of_texts", "loss_of_pictures")
FILES = [*(Path(__file__).with_name(f"{name}.py") for name in NAMES), Path(image_text.__file__)]


def scripts() -> dict[str, Any]:
    """The ConfigMap with the scripts that make model and data and that evaluate a model."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": SCRIPTS},
        "data": {path.name: path.read_text() for path in FILES},
    }


def output_of(kubectl: Kubectl, name: str, *command: str) -> str:
    """Run a command in a pod with /data, /checkpoints and /scripts, and return what it printed.

    Raises CommandFailedError with its output if it does not exit with 0.
    """
    claims = {"data": "/data", "weights": "/checkpoints"}
    volumes: list[dict[str, Any]] = [
        {"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims
    ]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000},
            "volumes": [*volumes, {"name": SCRIPTS, "configMap": {"name": SCRIPTS}}],
            "containers": [
                {
                    "name": "command",
                    "image": BRIDGE_TRAINER.reference,
                    "command": list(command),
                    "env": [{"name": "HF_HUB_OFFLINE", "value": "1"}],
                    "volumeMounts": [
                        *({"name": claim, "mountPath": path} for claim, path in claims.items()),
                        {"name": SCRIPTS, "mountPath": "/scripts"},
                    ],
                }
            ],
        },
    }
    kubectl.apply(pod)
    done = "--for=jsonpath={.status.containerStatuses[0].state.terminated}"
    kubectl.run("wait", f"pod/{name}", done, "--timeout=600s")
    state = (kubectl.get("pod", name) or {})["status"]["containerStatuses"][0]["state"]["terminated"]
    text = kubectl.run("logs", name)
    if state["exitCode"] != 0:
        raise CommandFailedError(f"{' '.join(command)}: exit code {state['exitCode']}\n{text}")
    return text
