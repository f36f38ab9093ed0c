"""Injects faults into a rank: Python imports this module at start if its folder is on PYTHONPATH.

TEST_FAULTS is a JSON list of {"what", "rank", "at", "generations"}: at the forward pass of iteration `at` of
rank `rank`, in those generations (by default all), the rank does `what`: `nan` or `spike` (its loss),
`raise`, `loop` (endlessly, in Python), `leave` (exit code 0). A `slow-save` and a `slow-evaluation` take
SLOW_SECONDS. A `late-write` of checkpoint `at` waits in the asynchronous writer until the run has trained
LATE_ITERATIONS more. `wrong-product` simulates a device whose memory flips a bit.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import time
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


def endless_loop() -> None:
    while True:
        pass


def disturb_gpt(gpt: Any) -> None:
    compute_loss, forward_step = gpt.compute_loss, gpt.forward_step

    def disturbed_loss(mask: Any, output: Any) -> Any:
        iteration = gpt.get_args().curr_iteration + 1
        loss, tokens, reported = compute_loss(mask, output)
        factor = float("nan") if due("nan", iteration) else 100.0 if due("spike", iteration) else 1.0
        if factor != 1.0:
            reported["lm loss"][0] *= factor
        return loss, tokens, reported

    def disturbed_step(*args: Any, **kwargs: Any) -> Any:
        iteration = getattr(gpt.get_args(), "curr_iteration", -1) + 1
        if due("raise", iteration):
            raise RuntimeError("sample 7 cannot be read")
        if due("loop", iteration):
            endless_loop()
        if due("leave", iteration):
            os._exit(0)
        return forward_step(*args, **kwargs)

    gpt.compute_loss, gpt.forward_step = disturbed_loss, disturbed_step


def disturb_checkpointing(training: Any) -> None:
    save, evaluate = training.save_checkpoint, training.evaluate

    def disturbed_save(iteration: int, *args: Any, **kwargs: Any) -> Any:
        if due("slow-save", iteration):
            time.sleep(SLOW_SECONDS)
        return save(iteration, *args, **kwargs)

    def disturbed_evaluation(*args: Any, **kwargs: Any) -> Any:
        if due("slow-evaluation", training.get_args().curr_iteration + 1):
            time.sleep(SLOW_SECONDS)
        return evaluate(*args, **kwargs)

    training.save_checkpoint, training.evaluate = disturbed_save, disturbed_evaluation


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

    writer.write_preloaded_data = staticmethod(disturbed_write)


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


def disturb_preflight(preflight: Any) -> None:
    preflight.torch = FaultyMemory(preflight.torch)


DISTURB = {
    "megatron.core.dist_checkpointing.strategies.filesystem_async": disturb_writer,
    "megatron_trainer.health.preflight": disturb_preflight,
    "megatron_trainer.worker.gpt": disturb_gpt,
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


if FAULTS:
    sys.meta_path.insert(0, Finder())
