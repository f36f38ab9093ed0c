"""Images of the cluster's own programs: each is one static binary, or the Debian base."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from localcluster.addresses import REGISTRY
from localcluster.binaries import PROGRAMS, fingerprint, go_version
from localcluster.buildah import Buildah, scratch_dockerfile
from localcluster.commands import run
from localcluster.console import Report
from localcluster.errors import ClusterError
from localcluster.node import PAUSE_IMAGE
from localcluster.paths import Layout

SUITE = "trixie"
PACKAGES = ("python3", "python3-venv", "ca-certificates")
BASE_IMAGE = f"{REGISTRY}/debian-python:{SUITE}"
TRAINING_OPERATOR_IMAGE = f"{REGISTRY}/training-operator:v1.9.4"
PROVISIONER_IMAGE = f"{REGISTRY}/local-path-provisioner:v0.0.30"
PROGRAM_IMAGES = {
    PAUSE_IMAGE: ("pause", "/pause"),
    TRAINING_OPERATOR_IMAGE: ("training-operator", "/manager"),
    PROVISIONER_IMAGE: ("local-path-provisioner", "/usr/bin/local-path-provisioner"),
}
"""Image: the program in it, and where."""
INPUT_LABEL = "megatron.training/made-from"

BASE_DOCKERFILE = """FROM scratch
COPY . /
# The training-operator's init container waits with `nslookup MASTER`, which a minimal Debian lacks.
RUN printf '#!/bin/sh\\nexec getent hosts "$1"\\n' > /usr/local/bin/nslookup \\
 && chmod 755 /usr/local/bin/nslookup \\
 && echo 'megatron:x:1000:1000::/tmp:/bin/sh' >> /etc/passwd && echo 'megatron:x:1000:' >> /etc/group
"""


def mirrors(sources: Iterable[str]) -> list[str]:
    """The Debian archives that apt's source files name, in both of their formats, security left out."""
    found = []
    for text in sources:
        for line in text.splitlines():
            if match := re.match(r"(?:URIs:|deb(?:\s+\[[^]]*\])?)\s+(\S+/debian)/?(?:\s|$)", line.strip()):
                found.append(match[1])
    return list(dict.fromkeys(found))


def machine_mirror() -> str:
    """The first Debian archive that this machine's apt uses. Raises ClusterError when there is none."""
    folder = Path("/etc/apt")
    paths = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))]
    found = mirrors(path.read_text() for path in paths if path.is_file())
    if not found:
        raise ClusterError("no Debian archive in /etc/apt/sources.list*: add one, its suite does not matter")
    return found[0]


def base_root(layout: Layout) -> Path:
    """A minimal Debian with Python, made once by debootstrap."""
    path = layout.cache / f"debian-{SUITE}"
    if not path.exists():
        partial = path.with_suffix(".partial")
        if partial.exists():
            shutil.rmtree(partial)
        partial.parent.mkdir(parents=True, exist_ok=True)
        include = ",".join(PACKAGES)
        run(["debootstrap", "--variant=minbase", f"--include={include}", SUITE, partial, machine_mirror()])
        # Downloads and lists are of no use in an image.
        for folder in ("var/cache/apt/archives", "var/lib/apt/lists"):
            shutil.rmtree(partial / folder)
        partial.rename(path)
    return path


def build_base(layout: Layout, buildah: Buildah, report: Report) -> None:
    """The Debian base image, unless there is one made from the same recipe."""
    made_from = hashlib.sha256(repr((SUITE, PACKAGES, BASE_DOCKERFILE)).encode()).hexdigest()
    if buildah.labels(BASE_IMAGE).get(INPUT_LABEL) == made_from:
        return
    with report.step(f"base image: Debian {SUITE} with {', '.join(PACKAGES)}"):
        dockerfile = layout.cache / "Dockerfile.base"
        root = base_root(layout)
        dockerfile.write_text(BASE_DOCKERFILE)
        buildah.build(BASE_IMAGE, root, dockerfile, labels={INPUT_LABEL: made_from})


def build_programs(layout: Layout, buildah: Buildah, report: Report) -> None:
    """An image for each of PROGRAM_IMAGES whose program changed."""
    toolchain = go_version()
    stale = {}
    for image, (name, _) in PROGRAM_IMAGES.items():
        made_from = fingerprint(PROGRAMS[name], layout.tools, toolchain)
        if buildah.labels(image).get(INPUT_LABEL) != made_from:
            stale[image] = made_from
    if not stale:
        return
    with report.step(f"images of {', '.join(PROGRAM_IMAGES[image][0] for image in stale)}"):
        for image, made_from in stale.items():
            name, target = PROGRAM_IMAGES[image]
            context = layout.cache / "context" / name
            context.mkdir(parents=True, exist_ok=True)
            shutil.copy2(layout.binary(name), context / name)
            dockerfile = context.with_suffix(".Dockerfile")
            dockerfile.write_text(scratch_dockerfile([(name, target)], target))
            buildah.build(image, context, dockerfile, labels={INPUT_LABEL: made_from})


def push(buildah: Buildah, report: Report) -> None:
    with report.step("push the cluster's own images"):
        for image in (*PROGRAM_IMAGES, BASE_IMAGE):
            buildah.push(image)
