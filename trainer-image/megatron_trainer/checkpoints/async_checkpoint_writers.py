"""A rank's asynchronous checkpoint writer: how it starts, what it is given, and that it is watched.

Megatron hands a writer the tensors of a checkpoint and continues when the writer has copied them from the GPU
to the CPU. Tensors that are on the CPU already (all of them on the cpu platform, and by its code those of an
optimizer offloaded from a GPU) it does not copy but shares, so that a late writer would save the state of a
later step. Here they are copied too.

Megatron starts it as a fresh interpreter that imports torch and Megatron again, which takes longer than the
rank's own start and, on the cpu platform, lacks the stand-in for torch.cuda. Forked before the rank uses CUDA
it costs next to nothing. The writer uses CUDA itself, so from a rank that has used it, it is a fresh
interpreter after all, started by the rank and not, as Megatron does, by a fork server that hides its end.

Megatron ends the writer when the last iteration is done, and starts another where it then saves once more,
since the number of iterations is no multiple of --save-interval. That one would be a fresh interpreter too,
so the first is kept until the run ends.

Megatron does not detect that a writer died, or that its request could not be pickled, and waits for it
forever; the thread that notices ends the rank instead.
"""

import argparse
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from megatron.core.dist_checkpointing.strategies import async_utils, filesystem_async
from megatron.core.dist_checkpointing.strategies.filesystem_async import WriteBucket
from megatron.training import async_utils as training_async_utils
from megatron.training import initialize, training

_POLL_SECONDS = 1.0
_copy_from_gpu = filesystem_async.FileSystemWriterAsync.preload_tensors


def install(argv: Sequence[str], on_death: Callable[[str], None], forked: bool) -> None:
    """Start this rank's writer if `argv` has --async-save, and watch it. Call it before the rank uses CUDA.

    `on_death` is called on a thread with how the writer died, or why it got no request. `forked`: this
    process was forked from one that had not used CUDA; in a new interpreter imports may have used it.
    """
    filesystem_async.FileSystemWriterAsync.preload_tensors = staticmethod(snapshot)
    # A process without CUDA, in which the writer leaves the names of what it wrote.
    filesystem_async.get_write_results_queue("fork")
    initialize.init_persistent_async_worker = lambda rank, _mode: (
        training_async_utils.init_persistent_async_worker(rank, "fork" if _may_fork(forked) else "spawn")
    )
    _watch_requests(on_death)
    _keep_for_the_last_save()
    options = _options(argv)
    if options.async_save and forked and not torch.cuda.is_initialized():
        async_utils.PersistentAsyncCaller._get_process(
            int(os.environ.get("RANK", "0")),
            "fork",
            options.async_ckpt_cpu_priority,
            options.async_ckpt_io_priority,
        )
    threading.Thread(target=_watch, args=(on_death,), daemon=True, name="checkpoint-writer").start()


def _keep_for_the_last_save() -> None:
    """Have train() leave the writer, which pretrain() ends after the last save, unless the process ends."""
    train = training.train

    def train_and_keep(*args: Any, **kwargs: Any) -> Any:
        finalize = training.maybe_finalize_async_save

        def finalize_and_keep(blocking: bool = False, terminate: bool = False) -> None:  # noqa: ARG001
            finalize(blocking=blocking)

        training.maybe_finalize_async_save = finalize_and_keep
        try:
            return train(*args, **kwargs)
        except SystemExit:
            finalize(blocking=True, terminate=True)
            raise
        finally:
            training.maybe_finalize_async_save = finalize

    training.train = train_and_keep


def _watch_requests(on_failure: Callable[[str], None]) -> None:
    """Have `on_failure` called if a request cannot be pickled.

    multiprocessing pickles it on a thread of the queue, which prints the error and drops the request.
    """
    start = async_utils.PersistentAsyncCaller._get_process

    def start_and_watch(*args: Any, **kwargs: Any) -> Any:
        process = start(*args, **kwargs)

        def report(error: Exception, _request: object) -> None:
            on_failure(f"the checkpoint writer cannot be given its request: {type(error).__name__}: {error}")

        # The queue's thread takes it when it starts, with the first request.
        async_utils.PersistentAsyncCaller._persistent_queue._on_queue_feeder_error = report
        return process

    async_utils.PersistentAsyncCaller._get_process = staticmethod(start_and_watch)


def _options(argv: Sequence[str]) -> argparse.Namespace:
    """Read what Megatron's flags state of writers, with Megatron's defaults."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--async-save", action="store_true")
    parser.add_argument("--async-ckpt-cpu-priority", type=int, default=10)
    parser.add_argument("--async-ckpt-io-priority", type=int, default=3)
    return parser.parse_known_args(list(argv))[0]


def _may_fork(forked: bool) -> bool:
    """Whether a child can use CUDA. On the cpu platform the stand-in is always initialised."""
    if torch.cuda.is_initialized():
        return bool(torch.cuda.get_device_name() == "cpu")
    return forked


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
        code = _exit_code(process)
        if code:
            how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
            on_death(f"the checkpoint writer {how}")
            return


def _exit_code(process: multiprocessing.process.BaseProcess) -> int | None:
    """Return the exit code of a child, negative for a signal, None while it runs."""
    assert process.pid is not None
    try:
        # WNOWAIT does not reap: Megatron joins the process itself when it closes it.
        exited = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        # Reaped: multiprocessing does it whenever it starts another process.
        return process.exitcode
    if exited is None:
        return None
    return exited.si_status if exited.si_code == os.CLD_EXITED else -exited.si_status
