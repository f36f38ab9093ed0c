"""A rank's asynchronous checkpoint writers: given a snapshot, forked from the warm rank, and monitored.

Megatron hands a writer the tensors of a checkpoint and continues when the writer has copied them from the GPU
to the CPU. Tensors that are on the CPU already (all of them on the cpu platform, and by its code those of an
optimizer offloaded from a GPU) it does not copy but shares, so that a late writer would save the state of a
later step. Here they are copied too.

Megatron starts them as fresh interpreters that import torch and Megatron again, which takes longer than the
rank's own start and, on the cpu platform, lacks the stand-in for torch.cuda. Forked early, before CUDA and
the process group exist, they cost next to nothing. Megatron does not detect that a writer died and waits for
it forever; the thread here ends the rank instead.
"""

import os
import threading
import time
from collections.abc import Callable

import torch
from megatron.core.dist_checkpointing.strategies import async_utils, filesystem_async
from megatron.core.dist_checkpointing.strategies.filesystem_async import WriteBucket
from megatron.training import async_utils as training_async_utils
from megatron.training import initialize

_POLL_SECONDS = 1.0
_copy_from_gpu = filesystem_async.FileSystemWriterAsync.preload_tensors


def install(on_death: Callable[[str], None]) -> None:
    """Make Megatron give this rank's writers a snapshot, and fork them. Call it before training.

    `on_death` is called on a thread with how a writer died. Writers are not forked if CUDA is initialised,
    since it does not survive a fork.
    """
    filesystem_async.FileSystemWriterAsync.preload_tensors = staticmethod(snapshot)
    if torch.cuda.is_initialized() and torch.cuda.get_device_name() != "cpu":
        return
    filesystem_async.get_write_results_queue("fork")
    initialize.init_persistent_async_worker = lambda rank, _mode: (
        training_async_utils.init_persistent_async_worker(rank, "fork")
    )
    threading.Thread(target=_watch, args=(on_death,), daemon=True, name="checkpoint-writer").start()


def snapshot(buckets: list[WriteBucket], non_blocking: bool = True) -> list[WriteBucket]:
    """Return the buckets of a checkpoint with all tensors copied to the CPU.

    Megatron's writer calls this before training continues. The function is pickled by its name.
    """
    shared = {id(tensor) for *_, (_, tensors) in buckets for _, tensor in tensors}
    return [
        (path, key, (data, [(item, t.clone() if id(t) in shared else t) for item, t in tensors]))
        for path, key, (data, tensors) in _copy_from_gpu(buckets, non_blocking)
    ]


def _watch(on_death: Callable[[str], None]) -> None:
    while True:
        time.sleep(_POLL_SECONDS)
        process = async_utils.PersistentAsyncCaller._persistent_process
        if process is None or process.pid is None:
            continue
        try:
            # WNOWAIT does not reap: Megatron joins the process itself when it closes it.
            exited = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            continue
        if exited is None or (exited.si_code == os.CLD_EXITED and exited.si_status == 0):
            continue
        how = "exited with code" if exited.si_code == os.CLD_EXITED else "was killed by signal"
        on_death(f"the checkpoint writer {how} {exited.si_status}")
        return
