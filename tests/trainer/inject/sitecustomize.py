"""Injects faults into a rank or launcher: Python imports this module at start if its folder is on PYTHONPATH.

TEST_FAULTS is a JSON list of {"what", "rank", "at", "generations"}: at the forward pass of iteration `at` of
rank `rank`, in those generations (by default all), the rank does `what`: `nan` or `spike` (its loss),
`nan-output` (of its model; `nan-in-evaluation` in evaluations alone), `raise`, `lose-network` (NCCL's error),
`loop` (endlessly, in Python), `leave` (exit code 0). `hold` has all ranks complete their checkpoints
and wait before iteration `at` until the file "until" exists. A `slow-save` and a `slow-evaluation` take
SLOW_SECONDS. A `late-write` of checkpoint `at` waits in the asynchronous writer until the run has trained
LATE_ITERATIONS more. `fail-load` is a load that fails to copy into a tensor. `shift-samples` has a rank read
from "by" samples after those that the checkpoint has consumed, or before them.

In the preflight `wrong-product` simulates a device whose memory flips a bit, `slow-product` one that computes
100 times slower than it does, `deaf` a network interface through which no other node answers, `wrong-sum` one
that changes what it sends, `freeze-exchange` stops the process that exchanges data with other nodes, and
`die-in-check` kills the one that checks a device.

In the save of checkpoint `at`, `freeze-save` stops a rank by SIGSTOP once all ranks know what each will
write. `freeze-repair` stops a launcher that has found a checkpoint incomplete, before it sets it aside.
At the end of the run, `die-when-done` kills the Master pod's launcher by SIGKILL when its own ranks are done,
`die-at-end` when all others have left the gang. `lose-store` then cuts its connection to its own store.

On a GPU, `wedge` launches a kernel that does not end in hours, `assert` one whose device-side assert fails.
`device` sets fields of the state of the rank's simulated GPU to those of "state". With `abort` the
rank then ends as it does where a thread of NCCL throws the device's error: its text on stderr, and SIGABRT.

`time-hooks` is no fault: the rank prints how long the trainer's hooks have taken after its steps.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

SLOW_SECONDS = 7.0
LATE_ITERATIONS = 2
FAULTS = json.loads(os.environ.get("TEST_FAULTS", "[]"))


def due(what: str, iteration: int | None = None) -> bool:
    rank = int(os.environ.get("RANK", "-1"))
    generation = int(os.environ.get("MEGATRON_TRAINER_GENERATION", "0"))
    return any(
        fault["what"] == what
        and fault.get("rank", rank) == rank
        and fault.get("at", iteration) == iteration
        and generation in fault.get("generations", [generation])
        for fault in FAULTS
    )


def set_device_state(iteration: int) -> None:
    for fault in FAULTS:
        if fault["what"] == "device" and fault["at"] == iteration and due("device", iteration):
            from tests.gpu.simulated.control import STATE_ENV, Devices

            Devices(Path(os.environ[STATE_ENV])).set(int(os.environ["LOCAL_RANK"]), **fault["state"])


def abort_by_device_error() -> None:
    import torch

    try:
        torch.zeros(8, device="cuda").add_(1).cpu()
    except RuntimeError as error:
        os.write(2, f"terminate called after throwing an instance of\n  what():  {error}\n".encode())
        os.abort()


def fail_on_device(iteration: int) -> None:
    if due("wedge", iteration):
        import torch

        torch.cuda._sleep(1 << 60)
    if due("assert", iteration):
        import torch

        torch.zeros(1, device="cuda")[torch.tensor([7], device="cuda")]


def endless_loop() -> None:
    while True:
        pass


def hold(iteration: int, finalize_saves: Callable[..., None]) -> None:
    for fault in FAULTS:
        if fault["what"] == "hold" and fault["at"] == iteration and due("hold", iteration):
            # Only the ranks can complete a checkpoint whose writers are still at work.
            finalize_saves(blocking=True)
            while not Path(fault["until"]).exists():
                time.sleep(0.05)


def disturb_gpt(gpt: Any) -> None:
    compute_loss, forward_step = gpt.compute_loss, gpt.forward_step

    def disturbed_loss(mask: Any, output: Any) -> Any:
        iteration = gpt.get_args().curr_iteration + 1
        evaluates = not output.requires_grad
        if due("nan-output", iteration) or (evaluates and due("nan-in-evaluation", iteration)):
            output = output * float("nan")
        loss, tokens, reported = compute_loss(mask, output)
        factor = float("nan") if due("nan", iteration) else 100.0 if due("spike", iteration) else 1.0
        if factor != 1.0:
            reported["lm loss"][0] *= factor
        return loss, tokens, reported

    def disturbed_step(*args: Any, **kwargs: Any) -> Any:
        iteration = getattr(gpt.get_args(), "curr_iteration", -1) + 1
        if due("raise", iteration):
            raise RuntimeError("sample 7 cannot be read")
        if due("lose-network", iteration):
            raise RuntimeError("NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled system error")
        set_device_state(iteration)
        if due("abort", iteration):
            abort_by_device_error()
        fail_on_device(iteration)
        if due("loop", iteration):
            endless_loop()
        if due("leave", iteration):
            os._exit(0)
        return forward_step(*args, **kwargs)

    gpt.compute_loss, gpt.forward_step = disturbed_loss, disturbed_step


_SPLITS = ("split", "index_split")


def disturb_checkpointing(training: Any) -> None:
    save, evaluate, load = training.save_checkpoint, training.evaluate, training.load_checkpoint
    step, build_loader = training.train_step, training.build_pretraining_data_loader

    def disturbed_train_step(*args: Any, **kwargs: Any) -> Any:
        hold(training.get_args().curr_iteration + 1, training.maybe_finalize_async_save)
        return step(*args, **kwargs)

    def disturbed_save(iteration: int, *args: Any, **kwargs: Any) -> Any:
        if due("slow-save", iteration):
            time.sleep(SLOW_SECONDS)
        return save(iteration, *args, **kwargs)

    def disturbed_evaluation(*args: Any, **kwargs: Any) -> Any:
        if due("slow-evaluation", training.get_args().curr_iteration + 1):
            time.sleep(SLOW_SECONDS)
        return evaluate(*args, **kwargs)

    def disturbed_load(*args: Any, **kwargs: Any) -> Any:
        if due("fail-load") and os.environ.get("MEGATRON_TRAINER_RESUME"):
            import torch

            with torch.enable_grad():
                torch.ones(2, requires_grad=True)[:1].copy_(torch.zeros(1))
        return load(*args, **kwargs)

    def disturbed_loader(dataset: Any, consumed: int) -> Any:
        training_set = "train" in {getattr(getattr(dataset, name, None), "name", "") for name in _SPLITS}
        shift = [each["by"] for each in FAULTS if each["what"] == "shift-samples" and due("shift-samples")]
        return build_loader(dataset, consumed + (sum(shift) if training_set else 0))

    training.train_step, training.build_pretraining_data_loader = disturbed_train_step, disturbed_loader
    training.save_checkpoint, training.evaluate = disturbed_save, disturbed_evaluation
    training.load_checkpoint = disturbed_load


def disturb_writer(filesystem_async: Any) -> None:
    writer = filesystem_async.FileSystemWriterAsync
    write = writer.write_preloaded_data

    def disturbed_write(transforms: Any, *, write_bucket: Any, **options: Any) -> Any:
        checkpoint = Path(write_bucket[0]).parent
        iteration = int(checkpoint.name.removeprefix("iter_"))
        if due("late-write", iteration):
            records = checkpoint.parent / "progress.jsonl"
            while f'"iteration": {iteration + LATE_ITERATIONS},' not in records.read_text():
                time.sleep(0.05)
        return write(transforms, write_bucket=write_bucket, **options)

    prepare = writer.prepare_write_data

    def disturbed_preparation(self: Any, *args: Any) -> None:
        prepare(self, *args)
        if due("freeze-save", int(Path(self.checkpoint_dir).name.removeprefix("iter_"))):
            os.kill(os.getpid(), signal.SIGSTOP)

    writer.write_preloaded_data = staticmethod(disturbed_write)
    writer.prepare_write_data = disturbed_preparation


def disturb_repair(selection: Any) -> None:
    inner = selection.why_incomplete

    def disturbed_check(*args: Any) -> str | None:
        reason: str | None = inner(*args)
        caller = sys._getframe(1).f_code.co_name
        if reason is not None and caller == "choose" and due("freeze-repair"):
            os.kill(os.getpid(), signal.SIGSTOP)
        return reason

    selection.why_incomplete = disturbed_check


def disturb_end(handler: Any) -> None:
    leave, mark = handler.GangRendezvous.leave, handler.GangRendezvous.mark

    def disturbed_leave(gang: Any) -> None:
        leave(gang)
        if gang.node_rank == 0 and due("die-at-end"):
            os.kill(os.getpid(), signal.SIGKILL)

    def disturbed_mark(gang: Any, what: str) -> None:
        mark(gang, what)
        if gang.node_rank == 0 and what == "finished":
            if due("die-when-done"):
                os.kill(os.getpid(), signal.SIGKILL)
            if due("lose-store"):
                gang.store._connection._socket.shutdown(socket.SHUT_RDWR)

    handler.GangRendezvous.leave, handler.GangRendezvous.mark = disturbed_leave, disturbed_mark


def time_hooks(megatron_hooks: Any) -> None:
    report, spent = megatron_hooks.MegatronHooks._report_step, [0, 0.0]

    def timed_report(self: Any, *args: Any) -> None:
        import torch

        if torch.cuda.is_available():
            # The loss that it reads is ready then: what the device still computes is no cost of the hooks.
            torch.cuda.synchronize()
        started = time.perf_counter()
        report(self, *args)
        spent[:] = spent[0] + 1, spent[1] + time.perf_counter() - started
        print(f"megatron-train hooks: {spent[0]} steps, {spent[1]:.6f} s", flush=True)

    if any(fault["what"] == "time-hooks" for fault in FAULTS):
        megatron_hooks.MegatronHooks._report_step = timed_report


class FaultyMemory:
    """torch, but the first outer product has a wrong element."""

    def __init__(self, torch: Any) -> None:
        self._torch, self._flipped = torch, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)

    def outer(self, one: Any, other: Any) -> Any:
        product = self._torch.outer(one, other)
        if due("wrong-product") and not self._flipped:
            self._flipped = True
            product[0, 0] += 1
        return product


def disturb_device_check(device_check: Any) -> None:
    device_check.torch = FaultyMemory(device_check.torch)
    timed = device_check._timed

    def disturbed_time(operation: Any) -> Any:
        if due("die-in-check"):
            os.kill(os.getpid(), signal.SIGKILL)
        result, seconds = timed(operation)
        return result, seconds * (100 if due("slow-product") else 1)

    device_check._timed = disturbed_time


def disturb_pair_check(pair_check: Any) -> None:
    exchange = pair_check.exchange

    def disturbed_exchange(key: str, place: int, tensor: Any, limit: float) -> None:
        if due("freeze-exchange"):
            os.kill(os.getpid(), signal.SIGSTOP)
        if due("wrong-sum"):
            tensor[0] += 1
        exchange(f"unheard/{key}" if due("deaf") else key, place, tensor, limit)

    pair_check.exchange = disturbed_exchange


DISTURB = {
    "megatron.core.dist_checkpointing.strategies.filesystem_async": disturb_writer,
    "megatron_trainer.checkpoints.selection": disturb_repair,
    "megatron_trainer.health.device_check": disturb_device_check,
    "megatron_trainer.health.pair_check": disturb_pair_check,
    "megatron_trainer.rendezvous.handler": disturb_end,
    "megatron_trainer.worker.gpt": disturb_gpt,
    "megatron_trainer.worker.megatron_hooks": time_hooks,
    "megatron.training.training": disturb_checkpointing,
}


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, _path: Any, _target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name not in DISTURB:
            return None
        disturb = DISTURB.pop(name)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_disturb(module: ModuleType) -> None:
            execute(module)
            disturb(module)

        spec.loader.exec_module = execute_and_disturb  # type: ignore[method-assign]
        return spec


def disturb_imported() -> None:
    """For a process that has been forked: disturb the modules that were imported before the fork."""
    for name in list(DISTURB):
        if name in sys.modules:
            DISTURB.pop(name)(sys.modules[name])


if FAULTS:
    sys.meta_path.insert(0, Finder())
