"""The namespace that commands use, as kubectl finds it."""

from pathlib import Path

import pytest
from megatron_operator.cli import kubectl
from megatron_operator.cli.errors import CommandError
from megatron_operator.cli.kubectl import Kubectl

NO_CONTEXT = "error: current-context must exist in order to minify"


@pytest.fixture
def view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a fake `kubectl config view` prints, or the error with which it ends where this is missing."""
    program = tmp_path / "kubectl"
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/view || {{ cat {tmp_path}/error >&2; exit 1; }}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(kubectl, "_NAMESPACE_OF_POD", tmp_path / "namespace")
    return tmp_path / "view"


def current_namespace() -> str:
    return Kubectl(None, None, None).current_namespace()


def test_the_namespace_is_that_of_the_context(view: Path) -> None:
    view.write_text('{"contexts": [{"context": {"namespace": "research"}}]}')
    assert current_namespace() == "research"
    view.write_text('{"contexts": [{"context": {}}]}')
    assert current_namespace() == "default"


def test_without_a_kubeconfig_the_namespace_is_that_of_the_pod(view: Path) -> None:
    (view.parent / "error").write_text(NO_CONTEXT)
    assert current_namespace() == "default"
    (view.parent / "namespace").write_text("research\n")
    assert current_namespace() == "research"


def test_a_context_that_does_not_exist_is_an_error(view: Path) -> None:
    (view.parent / "error").write_text("error: cannot locate context x")
    with pytest.raises(CommandError, match="cannot locate context x"):
        current_namespace()
