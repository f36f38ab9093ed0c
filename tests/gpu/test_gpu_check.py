"""`make gpu-check` without a GPU, and the page that it writes."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.hardware import imports
from tests.gpu.hardware import main as gpu_check
from tests.gpu.hardware.runs import Result

ROOT = Path(__file__).parents[2]


def test_without_a_gpu_it_reports_what_is_missing_and_exits_2() -> None:
    before = gpu_check.PAGE.read_text()
    command = [sys.executable, "-m", "tests.gpu.hardware.main"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "gpu-check: missing: a GPU with its driver and NVML (libnvidia-ml.so.1)" in done.stderr
    assert gpu_check.PAGE.read_text() == before


def test_the_machine_is_checked_before_packages_are_installed() -> None:
    command = [sys.executable, "-m", "tests.gpu.hardware.main", "--machine"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Transformer Engine" not in done.stderr


def test_the_page_has_the_facts_and_each_result_with_its_figures() -> None:
    results = {
        "one": Result(True, {"step": "3.1 ms", "cause": "a|b"}),
        "two": Result(False, {"error": "AssertionError: no"}),
    }
    text = gpu_check.page({"Device": "NVIDIA H100", "Driver": "580"}, results)
    assert "| Device | NVIDIA H100 |\n| Driver | 580 |" in text
    assert "| one | passed | step: 3.1 ms; cause: a/b |" in text
    assert "| two | **failed** | error: AssertionError: no |" in text


def test_the_innermost_import_that_starts_the_thread_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the question itself imports, as pathlib did on the first machine with a GPU."""
    (tmp_path / "outer_module.py").write_text("import harmless_module\nimport starting_module\n")
    (tmp_path / "harmless_module.py").write_text("")
    (tmp_path / "starting_module.py").write_text("import harmless_module\nharmless_module.started = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def started() -> bool:
        import pathlib  # noqa: F401

        return hasattr(sys.modules.get("harmless_module"), "started")

    def load() -> None:
        import outer_module  # noqa: F401

    assert imports.first_import_after_which(started, load) == "starting_module"
    assert imports.first_import_after_which(lambda: False, load) is None
