"""Pods with the image of Megatron-Bridge that run one command on the volumes of a fine-tuning run."""

from pathlib import Path
from typing import Any

from localcluster.images import BRIDGE_TRAINER

from testkit import image_text
from testkit.errors import CommandFailedError
from testkit.kubectl import Kubectl
from testkit.weights import disturbed

SCRIPTS = "scripts"
NAMES = ("model_and_answers", "merged_losses", "loss_of_chats", "loss_of_texts", "loss_of_pictures")
FILES = {
    **{f"{name}.py": Path(__file__).with_name(f"{name}.py") for name in NAMES},
    "image_text.py": Path(image_text.__file__),
    "testkit/weights/disturbed.py": Path(disturbed.__file__),
}
"""Scripts and what they import, by their places in the folder that python imports from."""


def scripts() -> dict[str, Any]:
    """The ConfigMap with the scripts that make model and data and that evaluate a model."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": SCRIPTS},
        "data": {_key(place): path.read_text() for place, path in FILES.items()},
    }


def _key(place: str) -> str:
    return place.replace("/", "-")


def output_of(kubectl: Kubectl, name: str, *command: str) -> str:
    """Run a command in a pod with /data, /checkpoints and /scripts, and return what it printed.

    Raises CommandFailedError with its output if it does not exit with 0.
    """
    claims = {"data": "/data", "weights": "/checkpoints"}
    volumes: list[dict[str, Any]] = [
        {"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims
    ]
    items = [{"key": _key(place), "path": place} for place in FILES]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000},
            "volumes": [*volumes, {"name": SCRIPTS, "configMap": {"name": SCRIPTS, "items": items}}],
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
