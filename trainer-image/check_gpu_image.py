"""Last step of the GPU image's build, as uid 1000: imports what a run needs and prints the versions as JSON.

Fails where a package is missing or does not load, where Triton would find no compiler or headers, and where a
venv on top of a base image with torch has another torch.
"""

import json
import os
import platform
import shutil
import sys
import sysconfig
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distributions, version
from importlib.util import find_spec
from pathlib import Path

PACKAGES = (
    "torch",
    "transformer-engine",
    "megatron-core",
    "nvidia-ml-py",
    "nvidia-cudnn-cu13",
    "nvidia-nccl-cu13",
    "triton",
    "numpy",
    "transformers",
)

OF_BRIDGE = {"diffusers": ("FluxTransformer2DModel", "WanTransformer3DModel")}
"""What Megatron-Bridge imports with its recipes, whichever is run, where it is installed."""


def problems() -> list[str]:
    """What keeps this image from training; empty where nothing does."""
    found = []
    if os.geteuid() == 0:
        found.append("the image's user is root; set USER 1000:1000")
    if shutil.which("gcc") is None and shutil.which("cc") is None:
        found.append("no C compiler, which Triton needs; install gcc")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        found.append("no Python.h, which Triton needs; install python3-dev")
    copies = sorted({str(found.locate_file("torch")) for found in distributions(name="torch")})
    if len(copies) != 1:
        found.append(f"torch is installed {len(copies)} times ({', '.join(copies)}); keep one")
    return found


def versions() -> dict[str, str]:
    """Import what a run needs. Returns the versions of Python and of the packages that are installed."""
    import torch
    import transformer_engine.pytorch
    from megatron import training

    del transformer_engine, training
    for name, classes in OF_BRIDGE.items():
        if find_spec(name) is not None:
            for each in classes:
                getattr(import_module(name), each)
    found = {"python": platform.python_version(), "torch build": torch.__version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "of the base image"
    return found


if __name__ == "__main__":
    if lines := problems():
        sys.exit("\n".join(lines))
    print(json.dumps(versions()))
