"""The trainer's packages on nodes with Arm processors: those of GB200, GB300 and GH200."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TRAINER = Path(__file__).parents[2] / "trainer-image"
SOURCES = ("transformer-engine-torch", "antlr4-python3-runtime")
"""Packages without wheels for any processor: the image's build compiles them."""


@pytest.mark.parametrize(
    "name",
    ["requirements-gpu.txt", "requirements-bridge-gpu.txt", "requirements-bridge.txt",
     "requirements-ngc.txt", "requirements-tracking.txt"],
)  # fmt: skip
def test_every_pinned_package_of_the_gpu_images_has_a_wheel_for_arm(name: str, tmp_path: Path) -> None:
    index = os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("PIP_INDEX_URL")
    command = [
        sys.executable, "-m", "uv", "pip", "install", "--dry-run", "--quiet",
        "--target", str(tmp_path), "--python-version", "3.13", "--python-platform", "aarch64-manylinux_2_28",
        "--no-deps", "--require-hashes", "--only-binary", ":all:",
        *(word for each in SOURCES for word in ("--no-binary", each)),
        "--requirements", str(TRAINER / name),
    ]  # fmt: skip
    environment = os.environ | {"UV_SYSTEM_CERTS": "1"} | ({"UV_DEFAULT_INDEX": index} if index else {})

    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert found.returncode == 0, found.stderr
