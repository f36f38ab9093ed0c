"""What a machine with GPUs has and this one lacks, as simulations named as such."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.gpu.simulated import build
from tests.gpu.simulated.control import STATE_ENV, Devices
from tests.trainer.gang import Gang
from tests.trainer.warm_process import WarmProcess

GPUS = 4

# Megatron's own layers: Transformer Engine has no wheel to install; gloo, since NCCL contains
# NVIDIA's runtime; no fused kernels of Apex.
_FLAGS = """
    --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64
    --micro-batch-size 1 --global-batch-size 4 --lr 1e-4 --bf16 --tokenizer-type NullTokenizer
    --vocab-size 255 --split 99,1,0 --eval-interval 1000 --eval-iters 0 --log-interval 100 --save-interval 4
    --transformer-impl local --distributed-backend gloo --no-masked-softmax-fusion --no-persist-layer-norm
    --no-rope-fusion --rerun-mode disabled --use-distributed-optimizer
"""
FLAGS = _FLAGS.split()


@pytest.fixture(scope="session")
def without_nvml() -> Mapping[str, str]:
    """The environment of a container on a GPU node without NVML: its driver capabilities lack `utility`."""
    return os.environ | {"PYTHONWARNINGS": "ignore", "MEGATRON_PLATFORM": "gpu"}


@pytest.fixture(scope="session")
def with_nvml(without_nvml: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """An environment in which NVML reports two GPUs. There is no driver, so CUDA cannot be initialised."""
    folder = tmp_path_factory.mktemp("simulated-nvml")
    build.build_nvml(folder)
    return {**without_nvml, "LD_LIBRARY_PATH": str(folder), "SIMULATED_GPUS": "2"}


@pytest.fixture(scope="session")
def simulated_cuda(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The variables with which a process has GPUS simulated devices."""
    folder = tmp_path_factory.mktemp("simulated-cuda")
    build.build(folder)
    return {
        **build.environment(folder, GPUS),
        # New memory is zero, so what a kernel would have written reads as zero, not as an earlier tensor.
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "PYTHONWARNINGS": "ignore",
    }


@pytest.fixture(scope="session")
def warm_gpu(simulated_cuda: Mapping[str, str]) -> Iterator[WarmProcess]:
    """The process that forks launchers of the gpu platform."""
    modules = ("tests.gpu.simulated.fused_adam", "tests.gpu.simulated.host_decisions")
    process = WarmProcess("gpu", simulated_cuda, *modules)
    yield process
    process.close()


@pytest.fixture
def devices(tmp_path: Path) -> Devices:
    """The simulated devices of this test's runs, healthy."""
    return Devices(tmp_path / "simulated-gpus")


@pytest.fixture
def gpu_run(
    tmp_path: Path, warm_gpu: WarmProcess, simulated_cuda: Mapping[str, str], devices: Devices
) -> Iterator[Callable[..., Gang]]:
    """Makes runs of `nodes` pods with `ranks` ranks on simulated GPUs, which share a checkpoint directory."""
    runs: list[Gang] = []

    def make(ranks: int = 1, nodes: int = 1) -> Gang:
        run = Gang(tmp_path, None, nodes, warm_gpu, ranks)
        run.environment |= {**simulated_cuda, "MEGATRON_PLATFORM": "gpu", STATE_ENV: str(devices.path)}
        run.flags = list(FLAGS)
        runs.append(run)
        return run

    yield make
    for run in runs:
        run.stop()
