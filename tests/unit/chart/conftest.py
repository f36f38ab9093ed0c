"""Renders the chart with the real helm."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts" / "megatron-operator"
KUBE_VERSION = "1.36.3"

Render = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def helm() -> Callable[..., subprocess.CompletedProcess[str]]:
    """The helm that the local cluster builds, or the one on PATH."""
    built = ROOT / ".cluster" / "bin" / "helm"
    binary = str(built) if built.exists() else shutil.which("helm")
    if binary is None:
        pytest.skip("no helm: neither .cluster/bin/helm (built by `make cluster-up`) nor one on PATH")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([binary, *arguments], capture_output=True, text=True, check=False)

    return run


@pytest.fixture
def notes(helm: Any, tmp_path: Path) -> Callable[[dict[str, Any]], str]:
    """Renders the notes with these values. helm shows them in a cluster only, so they become an object."""

    def text(values: dict[str, Any]) -> str:
        chart = shutil.copytree(CHART, tmp_path / "chart")
        templates = chart / "templates"
        (templates / "_notes.tpl").write_text(
            f'{{{{ define "notes" }}}}{(templates / "NOTES.txt").read_text()}{{{{ end }}}}'
        )
        (templates / "notes.yaml").write_text('text: {{ include "notes" . | quote }}\n')
        (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
        done = helm(
            "template", "megatron-operator", str(chart), "--values", str(tmp_path / "values.yaml"),
            "--kube-version", KUBE_VERSION, "--show-only", "templates/notes.yaml",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return str(yaml.safe_load(done.stdout)["text"])

    return text


@pytest.fixture
def render(helm: Any, tmp_path: Path) -> Render:
    """Renders the chart with these values; returns its objects. Raises ValueError if helm refuses them."""

    def objects(
        values: dict[str, Any] | Path, namespace: str = "megatron-system", kubernetes: str = KUBE_VERSION
    ) -> list[dict[str, Any]]:
        if isinstance(values, Path):
            path = values
        else:
            path = tmp_path / "values.yaml"
            path.write_text(yaml.safe_dump(values))
        done = helm(
            "template", "megatron-operator", str(CHART), "--namespace", namespace,
            "--kube-version", kubernetes, "--values", str(path),
        )  # fmt: skip
        if done.returncode:
            raise ValueError(done.stderr)
        return [item for item in yaml.safe_load_all(done.stdout) if item]

    return objects
