"""The trainer's images for GPUs: built from the registries alone, measured, and started without a driver.

The local cluster has no use for them: its GPUs are simulated.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass

from localcluster import packages
from localcluster.buildah import Buildah
from localcluster.console import Console
from localcluster.errors import ClusterError
from localcluster.images import Image, build_volumes
from localcluster.lock import exclusive
from localcluster.paths import Paths
from localcluster.systemimages import COMPILER_BASE_IMAGE, COMPILER_PACKAGES, build_base

WHEELS = "/var/cache/megatron-wheels"
NO_DRIVER = "no NVIDIA driver in this container"
"""What the pod's last message has to contain where no driver is mounted."""

_AS_IN_A_POD = """
ip link set lo up
mount --bind "$root" "$root"
mount -t tmpfs tmpfs "$root/tmp"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -o remount,bind,ro "$root"
in_image() {
    chroot --userspec=1000:1000 "$root" env -i PATH=/opt/megatron/venv/bin:/usr/bin:/bin HOME=/tmp "$@"
}
"""
_SIZES = """
du -sxk --apparent-size "$root" | cut -f1
tar -C "$root" -cf - . | zstd -q -3 -T0 | wc -c
"""
_START = """
in_image PET_NNODES=1 PET_NODE_RANK=0 PET_NPROC_PER_NODE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 \\
    MEGATRON_TERMINATION_LOG=/tmp/termination megatron-train \\
    --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 \\
    --micro-batch-size 1 --global-batch-size 1 --train-iters 2 --lr 1e-4 --bf16 --mock-data \\
    --tokenizer-type NullTokenizer --vocab-size 255 > "$root/tmp/log" 2>&1 && code=0 || code=$?
echo "$code"
cat "$root/tmp/termination" 2> /dev/null || tail -n 20 "$root/tmp/log"
"""


@dataclass(frozen=True)
class GpuImage:
    """What was measured of a built image."""

    name: str
    seconds: float
    """Of the build; layers that were cached cost nothing."""
    unpacked_bytes: int
    zstd_bytes: int
    """Of one zstd stream at level 3; layers that are compressed one by one take a little more."""
    versions: dict[str, str]
    start: str
    """The launcher's last message in a container without a driver."""

    def lines(self) -> list[str]:
        """The measurements as text."""
        sizes = f"{self.unpacked_bytes / 2**30:.2f} GiB unpacked, {self.zstd_bytes / 1e9:.2f} GB as zstd"
        found = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return [
            f"{self.name}: {sizes}, built in {self.seconds:.0f} s",
            found,
            f"without a driver: {self.start}",
        ]


def parse_start(text: str) -> str:
    """The message of a launcher that was started without a driver, from exit code and termination message.

    Raises ClusterError if it does not end with 138 and name the missing driver.
    """
    code, _, message = text.partition("\n")
    if code != "138" or NO_DRIVER not in message:
        raise ClusterError(
            f"a start without a driver ended with {code}, expected 138 and {NO_DRIVER!r}:\n{message}"
        )
    return f"exit {code}, {json.loads(message)['message']}"


def build(paths: Paths, image: Image, console: Console) -> GpuImage:
    """Build a GPU image with cached layers, start it without a driver, measure it. Raises ClusterError."""
    if os.geteuid() != 0:
        raise ClusterError("building images needs root: debootstrap and mounts; run it with sudo -E")
    with exclusive(paths.root / "gpu-image.lock", "the GPU image", console):
        packages.install(console)
        buildah = Buildah(paths)
        build_base(paths, buildah, console, COMPILER_BASE_IMAGE, COMPILER_PACKAGES)
        wheels = paths.checkout / ".cache" / "wheels"
        wheels.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        with console.step(f"image {image.reference}"):
            buildah.build(
                image.reference,
                paths.checkout / image.context,
                paths.checkout / image.dockerfile,
                arguments={"BASE": COMPILER_BASE_IMAGE, **dict(image.arguments)},
                volumes={**build_volumes(paths), wheels: WHEELS},
            )
        seconds = time.monotonic() - began
        with console.step("its start without a driver, on a read-only root as uid 1000"):
            start = parse_start(buildah.run_in_root(image.reference, _AS_IN_A_POD + _START))
            check = "in_image python /opt/megatron/source/trainer/check_gpu_image.py"
            versions = json.loads(buildah.run_in_root(image.reference, _AS_IN_A_POD + check).splitlines()[-1])
        with console.step("its size"):
            unpacked, compressed = map(int, buildah.run_in_root(image.reference, _SIZES).split())
        return GpuImage(image.reference, seconds, unpacked << 10, compressed, versions, start)
