"""Flags of the gpu platform that depend on what is installed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from megatron_trainer.platform import gpu

pytest.importorskip("megatron.training", reason="make setup-trainer")

FLAG = "--no-gradient-accumulation-fusion"
PROGRAM = """
import json, sys
from megatron_trainer.platform import gpu
print(json.dumps(gpu.adapt(sys.argv[1:])))
"""


def adapted_with(path: Path, *argv: str) -> tuple[list[str], list[str]]:
    """Return what `gpu.adapt` does in a new process, with `path` on PYTHONPATH."""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, *argv],
        env=os.environ | {"PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        check=True,
    )
    flags, added = json.loads(run.stdout)
    return flags, added


def test_gradient_accumulation_is_not_fused_without_apex() -> None:
    assert gpu.adapt(["--bf16"]) == (["--bf16", FLAG], [FLAG])


def test_the_flag_is_not_added_again() -> None:
    assert gpu.adapt([FLAG]) == ([FLAG], [])


def test_gradient_accumulation_is_fused_with_apex(tmp_path: Path) -> None:
    (tmp_path / "fused_weight_gradient_mlp_cuda.py").write_text("")
    assert adapted_with(tmp_path, "--bf16") == (["--bf16"], [])
