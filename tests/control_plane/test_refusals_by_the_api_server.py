"""Every recipe of tests/refusals under a real API server: the CRD refuses what it can, in the same words."""

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.control_plane

REFUSALS = sorted((Path(__file__).parents[1] / "refusals").glob("*.yaml"))


def header(path: Path, key: str) -> list[str]:
    return [line[len(key) :] for line in path.read_text().splitlines() if line.startswith(key)]


def apply(kubeconfig: Path, path: Path) -> subprocess.CompletedProcess[str]:
    kubectl = ["kubectl", "--kubeconfig", str(kubeconfig), "apply", "--dry-run=server", "-f", str(path)]
    return subprocess.run(kubectl, text=True, capture_output=True, check=False)


@pytest.mark.parametrize("path", REFUSALS, ids=lambda path: path.stem)
def test_kubectl_apply_refuses_what_the_crd_can_say(path: Path, control_plane: Path) -> None:
    [by] = header(path, "# refused by: ")
    done = apply(control_plane, path)
    match by:
        case "planner":
            assert done.returncode == 0, done.stderr
        case "schema":
            assert done.returncode == 1
            for words in header(path, "# kubectl says: "):
                assert words in done.stderr
        case "rule":
            assert done.returncode == 1
            for line in header(path, "# spec"):
                field, _, words = f"spec{line}".partition(": ")
                assert f"{field}: Invalid value: {words}" in done.stderr
