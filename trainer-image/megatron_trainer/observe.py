"""Watches Megatron's loop from the outside: wraps the functions that it calls, changes none of what they do.

The loss is taken from the step itself. Megatron's printed one is a mean over an accumulator that is not
reset after the first iteration of a process, so the second line after every start is the mean of two
iterations.
"""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from megatron.core.num_microbatches_calculator import get_current_global_batch_size
from megatron.core.optimizer_param_scheduler import get_canonical_lr_for_logging
from megatron.training import get_args, training

from megatron_trainer.contract import PROGRESS_FILE
from megatron_trainer.report import ProgressFile, Reporter


class LossNotFinite(Exception):
    """The reduced loss of an iteration is NaN or infinite."""


class LoadedAnother(Exception):
    """Megatron loaded another iteration than the one that the gang agreed on."""


class Observer:
    """Reports phases, loads, saves and every iteration of one rank. `resume_from`: what must be loaded."""

    def __init__(self, reporter: Reporter, resume_from: int | None) -> None:
        self._reporter = reporter
        self._resume_from = resume_from
        self.iteration = 0
        # Until the first step is done, what Megatron refuses lies in the flags and comes again.
        self.building = True

    def install(self) -> None:
        """Wrap the loop's functions where the loop looks them up."""
        self._wrap("load_checkpoint", self._load)
        self._wrap("save_checkpoint_and_time", self._save)
        self._wrap("evaluate_and_print_results", self._evaluate)
        self._wrap("train_step", self._step)

    @staticmethod
    def _wrap(name: str, around: Callable[..., Any]) -> None:
        inner = getattr(training, name)

        def outer(*args: Any, **kwargs: Any) -> Any:
            return around(inner, *args, **kwargs)

        setattr(training, name, outer)

    def _load(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._reporter.send("phase", phase="loading")
        iteration, flops = inner(*args, **kwargs)
        self.iteration = iteration
        if self._resume_from is not None and iteration != self._resume_from:
            raise LoadedAnother(
                f"iteration {self._resume_from} was to be loaded, Megatron loaded {iteration}"
            )
        self._reporter.send("loaded", iteration=iteration)
        return iteration, flops

    def _save(self, inner: Callable[..., Any], iteration: int, *args: Any, **kwargs: Any) -> None:
        self._reporter.send("phase", phase="saving")
        inner(iteration, *args, **kwargs)
        self._reporter.send("saved", iteration=iteration)

    def _evaluate(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self._reporter.send("phase", phase="evaluating")
        inner(*args, **kwargs)
        self._reporter.send("phase", phase="training")

    def _step(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        result = inner(*args, **kwargs)
        self.building = False
        losses, should_exit, optimizer = result[0], result[3], args[3]
        if should_exit:
            return result
        seconds = time.perf_counter() - started
        self.iteration = kwargs["iteration"] + 1
        loss = losses.get("lm loss")
        value = None if loss is None else float(loss.item())
        record = self._record(value, seconds, optimizer)
        if value is not None and self._reporter.rank == torch.distributed.get_world_size() - 1:
            self._file(record)
        self._reporter.send("iteration", **record)
        if value is not None and not math.isfinite(value):
            raise LossNotFinite(f"lm loss is {value} at iteration {self.iteration}")
        return result

    def _file(self, record: dict[str, Any]) -> None:
        if get_args().save:
            ProgressFile(Path(get_args().save) / PROGRESS_FILE).append(
                {key: record[key] for key in _FILED} | {"generation": self._reporter.generation}
            )

    def _record(self, loss: float | None, seconds: float, optimizer: Any) -> dict[str, Any]:
        args = get_args()
        batch = get_current_global_batch_size()
        flops = training.num_floating_point_operations(args, batch)
        return {
            "iteration": self.iteration,
            "trainIters": args.train_iters,
            "lmLoss": loss,
            "learningRate": get_canonical_lr_for_logging(optimizer.param_groups),
            "tokens": batch * args.seq_length,
            "stepSeconds": seconds,
            "tokensPerSecond": batch * args.seq_length / seconds,
            "tflopsPerGpu": flops / (seconds * 1e12 * args.world_size),
            "consumedSamples": args.consumed_train_samples + batch,
        }


_FILED = ("iteration", "lmLoss", "learningRate", "tokens", "stepSeconds")
