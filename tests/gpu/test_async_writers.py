"""Asynchronous checkpoint writers of ranks on GPUs: how they start, and that none dies unnoticed."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

pytest.importorskip("megatron.training", reason="make setup-trainer")

# A process that waits for a report that does not come is killed.
DEADLINE_SECONDS = 600

REPORT = """
import os, threading
from types import SimpleNamespace

import torch
from megatron.core.dist_checkpointing.strategies.async_utils import PersistentAsyncCaller
from megatron.training import async_utils, initialize
from megatron_trainer.checkpoints import async_checkpoint_writers

def report(how):
    print(how, flush=True)
    os._exit(0)
"""

SPAWNED = (
    REPORT
    + """
torch.cuda.is_initialized = lambda: True
torch.cuda.get_device_name = lambda: "simulated GPU"
options = SimpleNamespace(async_strategy="mcore", async_ckpt_cpu_priority=10, async_ckpt_io_priority=None)
async_utils.get_args = lambda: options
async_checkpoint_writers.install(["--async-save"], report, forked=True)
# As Megatron does after it has validated its flags.
initialize.init_persistent_async_worker(0, "forkserver")
threading.Event().wait()
"""
)

REAPED = (
    REPORT
    + """
import multiprocessing

writer = multiprocessing.get_context("fork").Process(target=threading.Event().wait)
writer.start()
writer.kill()
writer.join()
PersistentAsyncCaller._persistent_process = writer
async_checkpoint_writers.install([], report, forked=True)
threading.Event().wait()
"""
)

UNPICKLABLE = (
    """
from megatron_trainer.platform import cpu

cpu.install()
"""
    + REPORT
    + """
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest

torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
async_checkpoint_writers.install(["--async-save"], report, forked=True)
# A writer in good order, which waits for requests.
PersistentAsyncCaller._get_process(0, "fork")
# As a save of tensors does: training continues when the writer has copied them.
PersistentAsyncCaller().schedule_async_call(AsyncRequest(print, (), [], preload_fn=lambda: None))
"""
)

RANK = """
from pathlib import Path

from megatron_trainer.launcher.warm_up import warm_up

programs = warm_up("gpu", ["--async-save"])
import torch
from megatron.core.dist_checkpointing.strategies.async_utils import PersistentAsyncCaller

def write_loop(*_options):
    Path("poisoned").write_text(str(int(torch._C._cuda_isInBadFork())))

PersistentAsyncCaller.async_loop = staticmethod(write_loop)
code = programs.rank()
PersistentAsyncCaller._persistent_process.join()
print(code)
"""


def output(program: str, environment: Mapping[str, str], folder: Path) -> str:
    """Run `program` in `folder`, then kill what it started. Returns its last line."""
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            env=environment,
            cwd=folder,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        code = process.wait(timeout=DEADLINE_SECONDS)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert code == 0, log.read_text()
    return log.read_text().splitlines()[-1]


def test_the_death_of_a_writer_is_noticed_where_cuda_is_initialised(
    without_nvml: Mapping[str, str], tmp_path: Path
) -> None:
    """The writer is a new interpreter. It dies by itself here: there is no device for it to set."""
    assert output(SPAWNED, without_nvml, tmp_path) == "the checkpoint writer exited with code 1"


def test_a_dead_writer_that_multiprocessing_has_reaped_is_noticed(
    without_nvml: Mapping[str, str], tmp_path: Path
) -> None:
    """It reaps ended children whenever it starts another, such as a data loader's worker."""
    assert output(REAPED, without_nvml, tmp_path) == "the checkpoint writer was killed by signal 9"


def test_a_request_that_cannot_be_pickled_ends_the_rank_with_the_reason(
    without_nvml: Mapping[str, str], tmp_path: Path
) -> None:
    reported = output(UNPICKLABLE, without_nvml, tmp_path)
    assert reported.startswith(
        "the checkpoint writer cannot be given its request: PicklingError: Can't pickle"
    )


def test_the_writer_of_a_warm_rank_is_forked_before_the_rank_uses_cuda(
    with_nvml: Mapping[str, str], tmp_path: Path
) -> None:
    """The rank itself ends with 138, since there is no driver."""
    assert output(RANK, with_nvml, tmp_path) == "138"
    assert (tmp_path / "poisoned").read_text() == "0"
