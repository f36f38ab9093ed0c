"""The project's own images: built, pushed to the cluster's registry, and pulled by every node beforehand."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from localcluster.addresses import NODES, REGISTRY
from localcluster.buildah import Buildah, write_build_environment
from localcluster.commands import run
from localcluster.console import Report
from localcluster.errors import ClusterError
from localcluster.kubectl import Kubectl, Object
from localcluster.paths import Layout
from localcluster.systemimages import BASE_IMAGE

TAG = "dev"


@dataclass(frozen=True)
class Image:
    """An image of this project: a Dockerfile and its context, relative to the checkout."""

    name: str
    dockerfile: str
    context: str

    @property
    def reference(self) -> str:
        return f"{REGISTRY}/{self.name}:{TAG}"


OPERATOR = Image("megatron-operator", "operator/Dockerfile", ".")
TRAINER = Image("megatron-trainer-cpu", "trainer-image/Dockerfile", ".")
IMAGES = (OPERATOR, TRAINER)


def named(name: str) -> Image:
    """Raises ClusterError when there is no such image."""
    for image in IMAGES:
        if image.name == name:
            return image
    raise ClusterError(f"image {name!r} is unknown; one of: {', '.join(image.name for image in IMAGES)}")


def _uv() -> Path | None:
    beside = Path(sys.prefix) / "bin" / "uv"
    found = str(beside) if beside.exists() else shutil.which("uv")
    return Path(found) if found else None


def _volumes(layout: Layout) -> dict[Path, str]:
    """uv and its download cache, shared with the host: torch is downloaded once for all."""
    volumes = {write_build_environment(layout): "/run/build-environment:ro"}
    if (uv := _uv()) is not None:
        cache = Path(run([uv, "cache", "dir"]).strip())
        cache.mkdir(parents=True, exist_ok=True)
        volumes |= {uv: "/usr/local/bin/uv:ro", cache: "/root/.cache/uv"}
    return volumes


def build(layout: Layout, image: Image, buildah: Buildah, report: Report) -> None:
    with report.step(f"image {image.reference}"):
        buildah.build(
            image.reference,
            layout.checkout / image.context,
            layout.checkout / image.dockerfile,
            arguments={"BASE": BASE_IMAGE},
            volumes=_volumes(layout),
        )


def push(image: Image, buildah: Buildah, report: Report) -> None:
    with report.step(f"push {image.reference}"):
        buildah.push(image.reference)


class Pulled:
    """Which image, by its id, every node of the running cluster has under a name."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _read(self) -> dict[str, str | None]:
        try:
            ids: dict[str, str | None] = json.loads(self.path.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return {}
        return ids

    def get(self, image: Image) -> str | None:
        return self._read().get(image.name)

    def put(self, ids: Mapping[Image, str | None]) -> None:
        named_ids = {image.name: made for image, made in ids.items()}
        self.path.write_text(json.dumps({**self._read(), **named_ids}))


def pull_pod(node: str, images: list[str]) -> Object:
    """A pod that has a node pull `images` and ends: an init container each."""
    containers = [
        {
            "name": f"pull-{index}",
            "image": image,
            # A tag that moved is resolved again; layers that are there are not fetched again.
            "imagePullPolicy": "Always",
            "command": ["true"],
        }
        for index, image in enumerate(images)
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"pull-on-{node}", "namespace": "kube-system"},
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "initContainers": containers,
            "containers": [{"name": "done", "image": BASE_IMAGE, "command": ["true"]}],
        },
    }


def pull(kubectl: Kubectl, references: list[str], report: Report) -> None:
    """Have every node pull `references`, both at once, so that pods start without waiting."""
    with report.step(f"pull {', '.join(references)} on {len(NODES)} nodes"):
        names = [f"pod/pull-on-{node.name}" for node in NODES]
        kubectl.run("delete", "--namespace=kube-system", "--ignore-not-found", "--now", *names)
        kubectl.apply(pull_pod(node.name, references) for node in NODES)
        done = "--for=jsonpath={.status.phase}=Succeeded"
        kubectl.run("wait", "--namespace=kube-system", done, "--timeout=600s", *names)
        kubectl.run("delete", "--namespace=kube-system", "--now", *names)
