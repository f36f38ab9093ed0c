"""What a machine with GPUs has and this one lacks, as stand-ins that say so in their names."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def without_nvml() -> Mapping[str, str]:
    """The environment of a container on a GPU node without NVML: its driver capabilities lack `utility`."""
    return os.environ | {"PYTHONWARNINGS": "ignore", "MEGATRON_PLATFORM": "gpu"}


@pytest.fixture(scope="session")
def with_nvml(without_nvml: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """An environment in which NVML reports two GPUs. There is no driver, so CUDA cannot be initialised."""
    folder = tmp_path_factory.mktemp("simulated-nvml")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, HERE / "simulated_nvml.c"], check=True
    )
    return {**without_nvml, "LD_LIBRARY_PATH": str(folder), "SIMULATED_GPUS": "2"}
