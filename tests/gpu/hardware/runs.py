"""Runs of the trainer with one rank, on a GPU of this machine, for the checks of `make gpu-check`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.trainer.gang import Gang

_FLAGS = """
    --num-layers 4 --hidden-size 1024 --num-attention-heads 16
    --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 2
    --global-batch-size 8 --lr 1e-4 --bf16 --tokenizer-type NullTokenizer
    --vocab-size 32000 --split 99,1,0 --eval-interval 100000 --eval-iters 0 --log-interval 100
    --position-embedding-type rope --rerun-mode disabled --use-distributed-optimizer
"""
DETERMINISTIC = ("--deterministic-mode", "--attention-backend", "unfused")
SAVE_INTERVAL = 10
_LIBRARIES = ("CUDA_", "NCCL_", "NVTE_", "PYTORCH_")
ITERATIONS = 40


@dataclass(frozen=True)
class Result:
    """The outcome of a check. `figures` are measured values with their units, by name."""

    passed: bool
    figures: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Device:
    """What the runs train on: the trainer's platform, NVML's name of the GPU, its compute capability."""

    platform: str
    product: str
    capability: tuple[int, int]
    flags: Sequence[str] = tuple(_FLAGS.split())
    """Of Megatron, for a model that suits the device."""


class Runs:
    """Makes runs below `folder`. `used_bytes` returns the memory in use on the device."""

    def __init__(self, folder: Path, used_bytes: Callable[[], int], device: Device) -> None:
        self.folder = folder
        self.used_bytes = used_bytes
        self.device = device
        self._runs: list[Gang] = []
        self._undisturbed: Gang | None = None

    def new(self, name: str, *faults: dict[str, Any]) -> Gang:
        """Return a run of one pod with one rank, not started. `faults`: of tests/trainer/inject."""
        folder = self.folder / name
        folder.mkdir()
        run = Gang(folder, None, nodes=1, ranks=1)
        run.flags = [*self.device.flags, "--save-interval", str(SAVE_INTERVAL)]
        run.environment |= {"MEGATRON_PLATFORM": self.device.platform, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        if faults:
            run.inject(*faults)
        self._runs.append(run)
        return run

    def undisturbed(self) -> Gang:
        """Return the run that others are compared with, done."""
        if self._undisturbed is None:
            self._undisturbed = self.new("undisturbed")
            finish(self._undisturbed, *DETERMINISTIC)
        return self._undisturbed

    def close(self) -> None:
        """End what is still running."""
        for run in self._runs:
            run.stop()


def library_environment(container: Mapping[str, Any]) -> dict[str, str]:
    """Return a container's variables for CUDA and torch."""
    return {each["name"]: each["value"] for each in container["env"] if each["name"].startswith(_LIBRARIES)}


def finish(run: Gang, *extra: str) -> int:
    """Start a run and wait for its end. Returns its exit code."""
    run.start(extra=("--train-iters", str(ITERATIONS), *extra))
    return run.wait()[0]
