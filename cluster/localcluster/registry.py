"""The cluster's own image registry, on the bridge. What it stores outlives the cluster: it is a cache."""

from __future__ import annotations

import json
from pathlib import Path

from localcluster.addresses import HOST, REGISTRY_PORT
from localcluster.commands import run
from localcluster.console import Report
from localcluster.paths import Layout
from localcluster.processes import Processes, http_ok, wait_until

NAME = "registry"


def configuration(storage: Path) -> dict[str, object]:
    return {
        "version": 0.1,
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(storage)}, "delete": {"enabled": True}},
        "http": {"addr": f"{HOST}:{REGISTRY_PORT}"},
    }


def prune(layout: Layout) -> None:
    """Delete what no tag names. Nobody may push meanwhile."""
    words: list[str | Path] = ["garbage-collect", "--delete-untagged", "--quiet"]
    run([layout.binary(NAME), *words, layout.home / "registry.json"])


def up(layout: Layout, processes: Processes, report: Report) -> None:
    if processes.running(NAME):
        return
    with report.step("image registry"):
        storage = layout.cache / "registry"
        storage.mkdir(parents=True, exist_ok=True)
        path = layout.home / "registry.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(configuration(storage)))
        processes.start(NAME, [layout.binary(NAME), "serve", path])
        wait_until(
            lambda: http_ok(f"http://{HOST}:{REGISTRY_PORT}/v2/"),
            30,
            "image registry ready",
            lambda: processes.running(NAME),
        )
