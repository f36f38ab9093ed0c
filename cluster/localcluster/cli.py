"""`python -m localcluster`: up, down, status, images, gpu-image, kubeconfig."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from localcluster import gpu_image, images
from localcluster.cluster import Cluster
from localcluster.errors import ClusterError, MissingRequirementsError
from localcluster.paths import PROFILES

FAILED, CANNOT_RUN_HERE, INTERRUPTED = 1, 2, 130


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(prog="localcluster", description=__doc__)
    commands = result.add_subparsers(dest="command", required=True)
    for name, text in (
        ("up", "start the cluster; does nothing when it is running"),
        ("down", "stop the cluster and remove everything but caches"),
        ("binaries", "build the programs of one profile, by default of both"),
        ("images", "build the project's images, push changed ones and pull them on every node"),
        ("gpu-image", "build the trainer's image for GPUs, measure it and start it without a driver"),
        ("status", "list the processes and whether they run"),
        ("kubeconfig", "print the path of the kubeconfig"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        if name == "images":
            known = ", ".join(image.name for image in images.IMAGES)
            command.add_argument("names", nargs="*", help=f"build only these of: {known}")
            continue
        if name == "gpu-image":
            command.add_argument("--bridge", action="store_true", help="the image with Megatron-Bridge")
            continue
        default = None if name == "binaries" else "full"
        command.add_argument("--profile", choices=PROFILES, default=default)
    return result


def run(options: argparse.Namespace) -> int:
    """Run one command. Returns the exit code; raises ClusterError."""
    cluster = Cluster(getattr(options, "profile", None) or "full")
    if options.command == "binaries":
        for profile in [options.profile] if options.profile else PROFILES:
            Cluster(profile).build()
    elif options.command == "up":
        cluster.up()
        cluster.console.line(f"the {cluster.profile} cluster is up: export KUBECONFIG={cluster.kubeconfig}")
    elif options.command == "down":
        cluster.down()
    elif options.command == "images":
        cluster.images([images.find_image(name) for name in options.names] or images.DEFAULT_IMAGES)
    elif options.command == "gpu-image":
        image = images.BRIDGE_GPU_TRAINER if options.bridge else images.GPU_TRAINER
        print("\n".join(gpu_image.build(cluster.paths, image, cluster.console).lines()))
    elif options.command == "kubeconfig":
        print(cluster.kubeconfig)
    elif options.command == "status":
        status = cluster.status()
        for name, running in status.items():
            print(f"{name:28} {'running' if running else 'stopped'}")
        if not status or not all(status.values()):
            raise ClusterError(f"the {cluster.profile} cluster is not up")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and print errors. Returns the exit code."""
    options = parser().parse_args(arguments)
    try:
        return run(options)
    except MissingRequirementsError as error:
        print(error, file=sys.stderr)
        return CANNOT_RUN_HERE
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("interrupted: the next `up` or `down` continues from here", file=sys.stderr)
        return INTERRUPTED
