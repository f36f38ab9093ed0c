"""Hooks into Megatron's training loop: wraps the functions that it calls without changing what they do.

The loss is that of the step itself. Megatron prints a mean over an accumulator that is not reset after the
first iteration of a process, so the second line after every start is the mean of two iterations.
"""

import contextlib
import functools
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from megatron.core import mpu, timers
from megatron.core.dist_checkpointing import serialization
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync
from megatron.core.num_microbatches_calculator import get_current_global_batch_size
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler, get_canonical_lr_for_logging
from megatron.training import checkpointing, get_args, global_vars, training
from megatron_contract.environment import PROGRESS_FILE, SCALARS_FILE, VALIDATION_FILE
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException

from megatron_trainer.checkpoints import (
    bucket_padding,
    extra_states,
    left_out_states,
    offloaded_weights,
    optimizer_chain,
    own_schedule,
)
from megatron_trainer.checkpoints.checkpoint_lease import (
    LeaseLostError,
    require_generation,
    require_lease,
)
from megatron_trainer.checkpoints.left_out_states import LeftOutStates
from megatron_trainer.errors import TrainerError
from megatron_trainer.health.loss_spikes import LossSpikeDetector
from megatron_trainer.settings import read_profile_window, read_tracking
from megatron_trainer.telemetry.reporter import FINISHING_SAVE, LEASE_ENV, ProgressFile, Reporter
from megatron_trainer.telemetry.sample_log import SKIPPED
from megatron_trainer.tracking.scalar_writer import ScalarWriter
from megatron_trainer.worker import gpt
from megatron_trainer.worker.sample_recorder import SampleRecorder
from megatron_trainer.worker.step_phases import StepPhases
from megatron_trainer.worker.step_profiler import StepProfiler

# Minimum interval between reports of an evaluation's batches.
_PULSE_SECONDS = 1.0


class BadLossError(TrainerError):
    """The reduced loss of an iteration is NaN, infinite, or a spike."""


class WrongCheckpointError(TrainerError):
    """Megatron loaded another iteration than that of the generation's plan."""


class UnreadableCheckpointError(TrainerError):
    """The checkpoint of `iteration` cannot be loaded; `__cause__` is the reason."""

    def __init__(self, iteration: int) -> None:
        super().__init__(f"checkpoint of iteration {iteration} cannot be loaded")
        self.iteration = iteration


# Failures of a load that are not caused by the checkpoint: incompatible flags, an unavailable volume, too
# little memory.
_UNRELATED_TO_CHECKPOINT = (AssertionError, OSError, MemoryError, torch.OutOfMemoryError)


class MegatronHooks:
    """Reports phases, loads, saves and every iteration of one rank.

    `resume_from` is the iteration that must be loaded, None for none.
    """

    def __init__(self, reporter: Reporter, resume_from: int | None, spikes: LossSpikeDetector) -> None:
        self._reporter = reporter
        self._resume_from = resume_from
        self._spikes = spikes
        self._profiler = StepProfiler(read_profile_window(), reporter.rank)
        self._phases = StepPhases()
        self._samples = SampleRecorder(reporter.generation)
        self._left_out = LeftOutStates()
        self._owner = os.environ.get(LEASE_ENV, "")
        self._saving = False
        self._evaluating = False
        # Whether the next loss of an evaluation is that of the validation data: not of the test data, and not
        # of a second set.
        self._validating = False
        self._pulse_at = 0.0
        # Seconds between steps since the last line of the progress file.
        self._between = dict.fromkeys(_BETWEEN_FIELDS, 0.0)
        self._progress: ProgressFile | None = None
        self._validations: ProgressFile | None = None
        self._scalars = ScalarWriter(reporter.generation) if self._is_tracked() else None
        self._steps = 0
        self.iteration = 0
        # The iteration whose step is running, None between steps.
        self.stepping: int | None = None
        # Until the first step is done, an exception of Megatron means incompatible flags and would recur.
        self.building = True

    def install(self) -> None:
        """Wrap the loop's functions in the modules from which the loop calls them."""
        self._wrap("load_checkpoint", self._load)
        self._wrap("_load_base_checkpoint", self._load_base, checkpointing)
        self._wrap("generate_state_dict", self._left_out.add_schedule, checkpointing)
        self._wrap("save_checkpoint_and_time", self._save)
        self._wrap("evaluate_and_print_results", self._evaluate)
        self._wrap("evaluate", self._record_validation)
        self._wrap("train_step", self._step)
        self._wrap("dummy_train_step", self._skip)
        self._wrap("maybe_finalize_async_save", self._finalize)
        self._wrap("schedule_async_save", self._schedule, checkpointing)
        self._wrap("get_save_function_and_args", self._guard, FileSystemWriterAsync)
        self._wrap("save_config", self._guard, serialization)
        for name in ("write_data", "finish"):
            # Shards and .metadata of Megatron FSDP.
            self._wrap(name, self._guard, FileSystemWriter)
        self._wrap("get_checkpoint_tracker_filename", self._name_tracker, checkpointing)
        self._wrap("forward_step", self._forward, gpt)
        self._wrap("build_train_valid_test_data_loaders", self._samples.watch)
        bucket_padding.install()
        extra_states.install()
        optimizer_chain.install()
        own_schedule.install()
        self._phases.install()
        if self._scalars is not None:
            # Megatron's timers write only to a writer of this class.
            timers.SummaryWriter = ScalarWriter
            self._wrap("training_log", self._write_scalars)
            global_vars._GLOBAL_TENSORBOARD_WRITER = self._scalars

    @staticmethod
    def _is_tracked() -> bool:
        """Whether this rank writes the curves of the run: the last one, as Megatron's own writers do."""
        last = int(os.environ.get("WORLD_SIZE", "1")) - 1
        return bool(read_tracking().trackers) and int(os.environ.get("RANK", "0")) == last

    def _write_scalars(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Write what `inner` adds: Megatron's log of an iteration, or an evaluation."""
        result = inner(*args, **kwargs)
        if self._scalars is not None and get_args().save:
            self._scalars.write(Path(get_args().save) / SCALARS_FILE)
        return result

    @staticmethod
    def _wrap(name: str, around: Callable[..., Any], module: Any = training) -> None:
        inner = getattr(module, name)

        @functools.wraps(inner)
        def outer(*args: Any, **kwargs: Any) -> Any:
            return around(inner, *args, **kwargs)

        setattr(module, name, outer)

    def _load(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._reporter.send("phase", phase="loading")
        try:
            # Megatron copies into parameters; those of an FP32 model are leaves that require a gradient.
            with torch.no_grad(), self._reading_all():
                iteration, flops = inner(*args, **kwargs)
        except _UNRELATED_TO_CHECKPOINT:
            raise
        except (Exception, CheckpointException) as error:
            # torch's CheckpointException is a BaseException.
            if self._resume_from is None:
                raise
            raise UnreadableCheckpointError(self._resume_from) from error
        self.iteration = iteration
        offloaded_weights.follow(*args, *kwargs.values())
        if self._resume_from is not None and iteration != self._resume_from:
            raise WrongCheckpointError(
                f"the plan is to load iteration {self._resume_from}, Megatron loaded {iteration}"
            )
        if self._resume_from is not None and not self._loads_optimizer():
            for each in (*args, *kwargs.values()):
                if isinstance(each, OptimizerParamScheduler):
                    self._left_out.follow_schedule(each)
        self._reporter.send("loaded", iteration=iteration)
        self._spikes.load_history(iteration)
        return iteration, flops

    def _load_base(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        found = self._left_out.find_schedule(inner, *args, **kwargs)
        if self._resume_from is not None and found[0] is not None:
            left_out_states.skip_left_out(get_args(), found[0])
        return found

    def _reading_all(self) -> contextlib.AbstractContextManager[None]:
        return left_out_states.reading_all(get_args())

    def _loads_optimizer(self) -> bool:
        return not get_args().no_load_optim

    def _save(self, inner: Callable[..., Any], iteration: int, *args: Any, **kwargs: Any) -> None:
        self._reporter.send("phase", phase="saving")
        self._require_lease()
        # Before the checkpoint: what a resume takes as done is recorded.
        self._samples.flush()
        self._saving = True
        started = time.perf_counter()
        inner(iteration, *args, **kwargs)
        self._between["saveSeconds"] += time.perf_counter() - started
        self._saving = False
        self._reporter.send("saved", iteration=iteration)

    def _guard(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Check the lease before shards and metadata.json: this process may have been frozen meanwhile."""
        self._require_lease()
        return inner(*args, **kwargs)

    def _name_tracker(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The same before a save without a writer process writes the tracker; a load names it too."""
        if self._saving:
            self._require_lease()
        return inner(*args, **kwargs)

    def _require_lease(self) -> None:
        """A rank whose launcher was replaced must not write. Raises LeaseLostError."""
        if self._owner and get_args().save:
            require_lease(Path(get_args().save), self._owner)
            require_generation(Path(get_args().save), self._reporter.generation)

    def _schedule(self, inner: Callable[..., Any], request: Any) -> Any:
        """Report when an asynchronous save is finalized, between two steps and possibly slowly."""
        steps = [functools.partial(self._guard, step) for step in request.finalize_fns]
        request.finalize_fns[:] = [self._start_finalizing, *steps, lambda: self._reporter.send("free")]
        return inner(request)

    def _start_finalizing(self) -> None:
        self._reporter.send("busy", doing=FINISHING_SAVE)
        self._require_lease()

    def _finalize(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("blocking"):
            return inner(*args, **kwargs)
        self._reporter.send("busy", doing=FINISHING_SAVE)
        result = inner(*args, **kwargs)
        self._reporter.send("free")
        return result

    def _forward(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        now = time.monotonic()
        if self._evaluating and now - self._pulse_at >= _PULSE_SECONDS:
            self._pulse_at = now
            self._reporter.send("pulse")
        return inner(*args, **kwargs)

    def _evaluate(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._reporter.send("phase", phase="evaluating")
        self._evaluating = True
        prefixes = [text for text in (*args[:2], kwargs.get("prefix")) if isinstance(text, str)]
        self._validating = not any("test set" in prefix for prefix in prefixes)
        started = time.perf_counter()
        result = self._write_scalars(inner, *args, **kwargs)
        self._between["evaluateSeconds"] += time.perf_counter() - started
        self._evaluating = False
        self._reporter.send("phase", phase="training")
        return result

    def _record_validation(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Append the loss of the validation data to the run's file, on the rank that keeps the progress."""
        result = inner(*args, **kwargs)
        loss = (result[0] or {}).get("lm loss")
        if loss is not None and self._validating and self._keeps_progress() and get_args().save:
            if self._validations is None:
                self._validations = ProgressFile(Path(get_args().save) / VALIDATION_FILE)
            generation = self._reporter.generation
            self._validations.append(
                {"iteration": self.iteration, "lmLoss": float(loss), "generation": generation}
            )
        self._validating = False
        return result

    def _keeps_progress(self) -> bool:
        """Whether this rank appends to the run's files: the last one, which knows the loss."""
        return bool(self._reporter.rank == torch.distributed.get_world_size() - 1)

    def _step(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        self._begin_step(kwargs["iteration"] + 1)
        result = inner(*args, **kwargs)
        self.building = False
        self._steps += 1
        losses, should_exit, optimizer = result[0], result[3], args[3]
        if should_exit:
            return result
        self.iteration = kwargs["iteration"] + 1
        self._samples.end(self.iteration, get_args().save)
        self._report_step(losses, time.perf_counter() - started, optimizer)
        return result

    def close(self) -> None:
        """Write what is left to write, when the rank ends, unless its launcher was replaced meanwhile."""
        if self._samples.is_recording:
            # An error of the volume would hide the one that ends the rank.
            with contextlib.suppress(LeaseLostError, OSError):
                self._require_lease()
                self._samples.close(self.stepping, get_args().save)

    def _begin_step(self, iteration: int) -> None:
        self.stepping = iteration
        self._profiler.begin(iteration)
        self._phases.begin(iteration)

    def _report_step(self, losses: dict[str, Any], seconds: float, optimizer: Any) -> None:
        """Report the iteration that is done. Raises BadLossError."""
        waited = self._phases.end()
        loss = losses.get("lm loss")
        value = None if loss is None else float(loss.reshape(-1)[0].item())
        record = self._record(value, seconds, optimizer)
        if value is not None and self._keeps_progress():
            self._append_progress(record)
        if self._scalars is not None:
            curves = {name: record[key] for name, key in _CURVES.items()}
            self._scalars.add(self.iteration, curves)
        self._reporter.send(
            "iteration",
            **record,
            settled=self._steps > _warm_up_steps(),
            waitSeconds=waited,
            stage=mpu.get_pipeline_model_parallel_rank(),
            reservedBytes=_reserved_bytes(),
        )
        if value is not None:
            self._check_loss(value)
        if self._profiler.ends(self.iteration):
            self._reporter.send("busy", doing="writing a profile")
            self._profiler.write(self.iteration, get_args().save)
            self._reporter.send("free")
        self.stepping = None

    def _check_loss(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise BadLossError(f"lm loss is {loss} at iteration {self.iteration}")
        if spike := self._spikes.check(loss):
            raise BadLossError(f"lm loss is {loss:.4g} at iteration {self.iteration}, {spike}")

    def _skip(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Skip an iteration: read its batches and discard them.

        Megatron's own function reads a batch on every pipeline stage; middle stages have no data iterator.
        """
        gpt.drop_batches(*args)
        self.iteration += 1
        self._samples.end(self.iteration, get_args().save, SKIPPED)
        self._reporter.send("skipped", iteration=self.iteration)

    def _append_progress(self, record: dict[str, Any]) -> None:
        if get_args().save:
            if self._progress is None:
                self._progress = ProgressFile(Path(get_args().save) / PROGRESS_FILE)
            line = {key: record[key] for key in _PROGRESS_FIELDS}
            between = {key: value for key, value in self._between.items() if value}
            self._between = dict.fromkeys(_BETWEEN_FIELDS, 0.0)
            self._progress.append(line | between | {"generation": self._reporter.generation})

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


def _reserved_bytes() -> int | None:
    """The most that PyTorch has reserved on this rank; None on CPUs, or if its allocator does not count."""
    try:
        return torch.cuda.max_memory_reserved() or None
    except RuntimeError:
        return None


def _warm_up_steps() -> int:
    """Return the number of slow first steps of a process: the first, and those that capture CUDA graphs."""
    args = get_args()
    graphs = getattr(args, "cuda_graph_impl", "none") not in (None, "none")
    return 1 + (args.cuda_graph_warmup_steps + 1 if graphs else 0)


_PROGRESS_FIELDS = ("iteration", "lmLoss", "learningRate", "tokens", "stepSeconds")
_CURVES = {
    "iteration-time": "stepSeconds",
    "throughput": "tflopsPerGpu",
    "tokens-per-second": "tokensPerSecond",
    "consumed-samples": "consumedSamples",
}
"""Name of a curve that Megatron adds itself only with flags, or not at all -> field of the record."""
_BETWEEN_FIELDS = ("saveSeconds", "evaluateSeconds")
