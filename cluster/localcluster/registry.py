"""The cluster's image registry on the bridge. Its storage is a cache that outlives the cluster."""

from __future__ import annotations

import json
from pathlib import Path

from localcluster.addresses import HOST, REGISTRY_PORT
from localcluster.commands import run
from localcluster.console import Console
from localcluster.paths import Paths
from localcluster.processes import Processes, http_ok, wait_until

NAME = "registry"


def configuration(storage: Path) -> dict[str, object]:
    """The registry's configuration."""
    return {
        "version": 0.1,
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(storage)}, "delete": {"enabled": True}},
        "http": {"addr": f"{HOST}:{REGISTRY_PORT}"},
    }


def prune(paths: Paths) -> None:
    """Delete untagged images. Nothing may be pushed meanwhile. Raises ClusterError."""
    args: list[str | Path] = ["garbage-collect", "--delete-untagged", "--quiet"]
    run([paths.binary(NAME), *args, paths.home / "registry.json"])


def up(paths: Paths, processes: Processes, console: Console) -> None:
    """Start the registry unless it is running, and wait until it is ready. Raises ClusterError."""
    if processes.running(NAME):
        return
    with console.step("image registry"):
        storage = paths.cache / "registry"
        storage.mkdir(parents=True, exist_ok=True)
        path = paths.home / "registry.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(configuration(storage)))
        processes.start(NAME, [paths.binary(NAME), "serve", path])
        wait_until(
            lambda: http_ok(f"http://{HOST}:{REGISTRY_PORT}/v2/"),
            30,
            "image registry ready",
            lambda: processes.running(NAME),
        )
