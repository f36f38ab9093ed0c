"""The project's own images: built, pushed to the cluster's registry, and pulled by every node in advance."""

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
from localcluster.console import Console
from localcluster.errors import ClusterError
from localcluster.kubectl import Kubectl, Object
from localcluster.paths import Paths
from localcluster.systemimages import BASE_IMAGE

TAG = "dev"


@dataclass(frozen=True)
class Image:
    """An image of this project: a Dockerfile and its context, absolute or relative to the checkout."""

    name: str
    dockerfile: str
    context: str
    arguments: tuple[tuple[str, str], ...] = ()
    """Build arguments beside BASE."""
    tag: str = TAG

    @property
    def reference(self) -> str:
        """The image's name with registry and tag."""
        return f"{REGISTRY}/{self.name}:{self.tag}"


OPERATOR = Image("megatron-operator", "operator/Dockerfile", ".")
TRAINER = Image("megatron-trainer-cpu", "trainer-image/Dockerfile", ".")
_BRIDGE = ("BRIDGE_REQUIREMENTS", "requirements-bridge.txt")
BRIDGE_TRAINER = Image(
    "megatron-trainer-bridge-cpu",
    TRAINER.dockerfile,
    TRAINER.context,
    (("BRIDGE_PACKAGES", "requirements-bridge-run.txt"), _BRIDGE),
)
GPU_TRAINER = Image("megatron-trainer-gpu", "trainer-image/Dockerfile.gpu", ".")
BRIDGE_GPU_TRAINER = Image(
    "megatron-trainer-bridge-gpu",
    GPU_TRAINER.dockerfile,
    GPU_TRAINER.context,
    (("REQUIREMENTS", "requirements-bridge-gpu.txt"), _BRIDGE),
)
DEFAULT_IMAGES = (OPERATOR, TRAINER)
IMAGES = (*DEFAULT_IMAGES, BRIDGE_TRAINER)
"""All that can be built; those that are not in DEFAULT_IMAGES only by name."""


def find_image(name: str) -> Image:
    """The image of this name. Raises ClusterError when there is none."""
    for image in IMAGES:
        if image.name == name:
            return image
    raise ClusterError(f"image {name!r} is unknown; one of: {', '.join(image.name for image in IMAGES)}")


def operator_of(source: Path, tag: str) -> Image:
    """The operator's image of another source tree, under a tag that is not TAG."""
    return Image(OPERATOR.name, str(source / OPERATOR.dockerfile), str(source), tag=tag)


def _uv() -> Path | None:
    installed = Path(sys.prefix) / "bin" / "uv"
    found = str(installed) if installed.exists() else shutil.which("uv")
    return Path(found) if found else None


def build_volumes(paths: Paths) -> dict[Path, str]:
    """What a build mounts: the package index, the host's uv and its cache, so that torch is loaded once."""
    volumes = {write_build_environment(paths): "/run/build-environment:ro"}
    if (uv := _uv()) is not None:
        cache = Path(run([uv, "cache", "dir"]).strip())
        cache.mkdir(parents=True, exist_ok=True)
        volumes |= {uv: "/usr/local/bin/uv:ro", cache: "/root/.cache/uv"}
    return volumes


def build(paths: Paths, image: Image, buildah: Buildah, console: Console) -> None:
    """Build an image with cached layers. Raises ClusterError."""
    with console.step(f"image {image.reference}"):
        buildah.build(
            image.reference,
            paths.checkout / image.context,
            paths.checkout / image.dockerfile,
            arguments={"BASE": BASE_IMAGE, **dict(image.arguments)},
            volumes=build_volumes(paths),
        )


def push(image: Image, buildah: Buildah, console: Console) -> None:
    """Push an image to the cluster's registry. Raises ClusterError."""
    with console.step(f"push {image.reference}"):
        buildah.push(image.reference)


class PulledImages:
    """The ids of the images that every node of the running cluster has pulled, by reference."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _read(self) -> dict[str, str | None]:
        try:
            ids: dict[str, str | None] = json.loads(self.path.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return {}
        return ids

    def get(self, image: Image) -> str | None:
        """The pulled id; None where the image was not pulled."""
        return self._read().get(image.reference)

    def put(self, ids: Mapping[Image, str | None]) -> None:
        """Note the ids of pulled images."""
        pulled = {image.reference: image_id for image, image_id in ids.items()}
        self.path.write_text(json.dumps({**self._read(), **pulled}))


def pull_pod(node: str, images: list[str]) -> Object:
    """A pod that makes a node pull `images`, one per init container, and exits."""
    containers = [
        {
            "name": f"pull-{index}",
            "image": image,
            # Resolve a tag that has moved; layers that exist are not fetched again.
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


def pull(kubectl: Kubectl, references: list[str], console: Console) -> None:
    """Pull `references` on all nodes in parallel, so that pods start without waiting. Raises ClusterError."""
    with console.step(f"pull {', '.join(references)} on {len(NODES)} nodes"):
        names = [f"pod/pull-on-{node.name}" for node in NODES]
        kubectl.run("delete", "--namespace=kube-system", "--ignore-not-found", "--now", *names)
        kubectl.apply(pull_pod(node.name, references) for node in NODES)
        done = "--for=jsonpath={.status.phase}=Succeeded"
        kubectl.run("wait", "--namespace=kube-system", done, "--timeout=600s", *names)
        kubectl.run("delete", "--namespace=kube-system", "--now", *names)
