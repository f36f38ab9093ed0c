"""Images of the cluster's own programs: one static binary each, and the Debian base image."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from localcluster.addresses import REGISTRY
from localcluster.binaries import PROGRAMS, fingerprint, go_version
from localcluster.buildah import Buildah, scratch_dockerfile
from localcluster.commands import run
from localcluster.console import Console
from localcluster.errors import ClusterError
from localcluster.node import PAUSE_IMAGE
from localcluster.paths import Paths

SUITE = "trixie"
PACKAGES = ("python3", "python3-venv", "ca-certificates")
BASE_IMAGE = f"{REGISTRY}/debian-python:{SUITE}"
COMPILER_PACKAGES = (*PACKAGES, "python3-dev", "g++")
COMPILER_BASE_IMAGE = f"{REGISTRY}/debian-python-compiler:{SUITE}"
"""The base of the GPU image: Triton and Transformer Engine compile C and C++ against Python's headers."""
TRAINING_OPERATOR_IMAGE = f"{REGISTRY}/training-operator:v1.9.4"
PROVISIONER_IMAGE = f"{REGISTRY}/local-path-provisioner:v0.0.30"
PROGRAM_IMAGES = {
    PAUSE_IMAGE: ("pause", "/pause"),
    TRAINING_OPERATOR_IMAGE: ("training-operator", "/manager"),
    PROVISIONER_IMAGE: ("local-path-provisioner", "/usr/bin/local-path-provisioner"),
}
"""Program and its path in the image, by image."""
INPUT_LABEL = "megatron.training/made-from"

BASE_DOCKERFILE = """FROM scratch
COPY . /
# The training-operator's init container needs nslookup, which a minimal Debian does not have.
RUN printf '#!/bin/sh\\nexec getent hosts "$1"\\n' > /usr/local/bin/nslookup \\
 && chmod 755 /usr/local/bin/nslookup \\
 && echo 'megatron:x:1000:1000::/tmp:/bin/sh' >> /etc/passwd && echo 'megatron:x:1000:' >> /etc/group
"""


def mirrors(sources: Iterable[str]) -> list[str]:
    """The Debian archives in apt's source files, in both formats, without the security archive."""
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
        raise ClusterError("no Debian archive in /etc/apt/sources.list*; add one of any suite")
    return found[0]


def base_root(paths: Paths, packages: Sequence[str] = PACKAGES) -> Path:
    """Folder with a minimal Debian with these packages, created once by debootstrap. Raises ClusterError."""
    path = paths.cache / (f"debian-{SUITE}" + ("" if packages == PACKAGES else "-compiler"))
    if not path.exists():
        partial = path.with_suffix(".partial")
        if partial.exists():
            shutil.rmtree(partial)
        partial.parent.mkdir(parents=True, exist_ok=True)
        include = ",".join(packages)
        run(["debootstrap", "--variant=minbase", f"--include={include}", SUITE, partial, machine_mirror()])
        # Package downloads and lists are not needed in an image.
        for folder in ("var/cache/apt/archives", "var/lib/apt/lists"):
            shutil.rmtree(partial / folder)
        partial.rename(path)
    return path


def build_base(
    paths: Paths,
    buildah: Buildah,
    console: Console,
    image: str = BASE_IMAGE,
    packages: Sequence[str] = PACKAGES,
) -> None:
    """Build a Debian base image, unless its inputs are unchanged. Raises ClusterError."""
    input_hash = hashlib.sha256(repr((SUITE, packages, BASE_DOCKERFILE)).encode()).hexdigest()
    if buildah.labels(image).get(INPUT_LABEL) == input_hash:
        return
    with console.step(f"base image: Debian {SUITE} with {', '.join(packages)}"):
        dockerfile = paths.cache / "Dockerfile.base"
        root = base_root(paths, packages)
        dockerfile.write_text(BASE_DOCKERFILE)
        buildah.build(image, root, dockerfile, labels={INPUT_LABEL: input_hash})


def build_programs(paths: Paths, buildah: Buildah, console: Console) -> None:
    """Build those of PROGRAM_IMAGES whose program has changed. Raises ClusterError."""
    toolchain = go_version()
    stale = {}
    for image, (name, _) in PROGRAM_IMAGES.items():
        input_hash = fingerprint(PROGRAMS[name], paths.tools, toolchain)
        if buildah.labels(image).get(INPUT_LABEL) != input_hash:
            stale[image] = input_hash
    if not stale:
        return
    with console.step(f"images of {', '.join(PROGRAM_IMAGES[image][0] for image in stale)}"):
        for image, input_hash in stale.items():
            name, target = PROGRAM_IMAGES[image]
            context = paths.cache / "context" / name
            context.mkdir(parents=True, exist_ok=True)
            shutil.copy2(paths.binary(name), context / name)
            dockerfile = context.with_suffix(".Dockerfile")
            dockerfile.write_text(scratch_dockerfile([(name, target)], target))
            buildah.build(image, context, dockerfile, labels={INPUT_LABEL: input_hash})


def push(buildah: Buildah, console: Console) -> None:
    """Push all of these images to the cluster's registry. Raises ClusterError."""
    with console.step("push the cluster's own images"):
        for image in (*PROGRAM_IMAGES, BASE_IMAGE):
            buildah.push(image)
