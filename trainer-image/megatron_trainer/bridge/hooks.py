"""Hooks into Megatron-Bridge's training loop, which report what those of Megatron's own loop do."""

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from megatron.bridge.data import loaders
from megatron.bridge.data import utils as datasets
from megatron.bridge.training import checkpointing, gpt_step, pretrain, train, vlm_step
from megatron.bridge.training import eval as evaluation
from megatron.bridge.training.state import GlobalState
from megatron.bridge.training.utils import flop_utils
from megatron.core import timers
from megatron.core.dist_checkpointing import serialization
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync
from megatron.core.num_microbatches_calculator import get_current_global_batch_size
from megatron.core.optimizer_param_scheduler import get_canonical_lr_for_logging
from megatron.training import global_vars

from megatron_trainer.bridge import diffusion, qwen3_omni
from megatron_trainer.checkpoints import bucket_padding, extra_states, optimizer_chain, own_schedule
from megatron_trainer.telemetry.sample_log import SKIPPED
from megatron_trainer.tracking.scalar_writer import ScalarWriter
from megatron_trainer.worker import prepared_index
from megatron_trainer.worker.dataset_splits import leave_out_unread
from megatron_trainer.worker.megatron_hooks import MegatronHooks


class BridgeHooks(MegatronHooks):
    """Megatron's hooks for Bridge, whose loop passes a GlobalState where Megatron's has global arguments."""

    def __init__(self, config: Any, *args: Any) -> None:
        super().__init__(*args)
        self._config = config
        self._loaded = False
        self._state: Any = None
        # What Megatron's hooks and the classification of errors read of Megatron's arguments.
        names = SimpleNamespace(save=config.checkpoint.save, train_iters=config.train.train_iters)
        global_vars._GLOBAL_ARGS = names

    def install(self) -> None:
        """Wrap the loop's functions in the modules from which the loop calls them."""
        self._wrap("load_checkpoint", self._load, checkpointing)
        self._wrap("_load_base_checkpoint", self._left_out.find_schedule, checkpointing)
        self._wrap("generate_state_dict", self._left_out.add_schedule, checkpointing)
        self._wrap("save_checkpoint_and_time", self._save_state, train)
        for module in (train, pretrain):
            self._wrap("evaluate_and_print_results", self._evaluate, module)
        self._wrap("evaluate", self._record_validation, evaluation)
        self._wrap("train_step", self._bridge_step, train)
        self._wrap("_dummy_train_step", self._drop, train)
        self._wrap("get_save_function_and_args", self._guard, FileSystemWriterAsync)
        self._wrap("save_config", self._guard, serialization)
        self._wrap("get_checkpoint_tracker_filename", self._name_tracker, checkpointing)
        for module in (gpt_step, vlm_step):
            self._wrap("forward_step", self._forward, module)
        if qwen3_omni.trains(self._config.model):
            from megatron.bridge.models.qwen_omni import qwen3_omni_step

            self._wrap("forward_step", self._forward, qwen3_omni_step)
        for step in diffusion.steps() if diffusion.is_diffusion(self._config) else ():
            self._wrap("__call__", self._forward, step)
        self._wrap("build_train_valid_test_data_loaders", self._samples.watch, loaders)
        self._wrap("BlendedMegatronDatasetBuilder", self._make_builder, datasets)
        self._wrap("to_yaml", self._write_last, type(self._config))
        bucket_padding.install()
        extra_states.install()
        optimizer_chain.install()
        own_schedule.install()
        self._phases.install()
        if self._scalars is not None:
            timers.SummaryWriter = ScalarWriter
            self._wrap("training_log", self._write_scalars, train)
            GlobalState.tensorboard_logger = property(lambda _: self._scalars)

    def _write_last(self, inner: Callable[..., Any], config: Any, path: str, *args: Any) -> None:
        """Write a checkpoint's last file whole: while it is missing, the save did not finish."""
        partial = Path(f"{path}.partial")
        inner(config, str(partial), *args)
        partial.replace(path)

    @staticmethod
    def _make_builder(
        inner: Callable[..., Any], kind: Any, samples: Sequence[int | None], built: Any, config: Any
    ) -> Any:
        """Return Megatron's builder of the sets that the run reads, by the index that a Job has built."""
        leave_out_unread(config, samples)
        builder = inner(kind, samples, built, config)
        if config.path_to_cache is None or torch.distributed.get_rank() != 0:
            return builder
        cache, build = Path(config.path_to_cache), builder.build
        prepared_index.take(cache)

        def reporting() -> Any:
            with prepared_index.reporting_built(cache):
                return build()

        builder.build = reporting
        return builder

    def _load(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._loaded = True
        return super()._load(inner, *args, **kwargs)

    def _reading_all(self) -> contextlib.AbstractContextManager[None]:
        # Bridge reads all that its configuration asks for.
        return contextlib.nullcontext()

    def _loads_optimizer(self) -> bool:
        return bool(self._config.checkpoint.load_optim)

    def _save_state(self, inner: Callable[..., Any], state: Any, *args: Any, **kwargs: Any) -> None:
        def save(_iteration: int, *args: Any, **kwargs: Any) -> None:
            inner(state, *args, **kwargs)

        self._save(save, state.train_state.step, *args, **kwargs)

    def _bridge_step(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        optimizer, state = args[3], args[5]
        self._state = state
        if not self._loaded:
            # Bridge loads nothing where there is no checkpoint.
            self._loaded = True
            self._reporter.send("loaded", iteration=0)
            self._spikes.load_history(0)
        started = time.perf_counter()
        self._begin_step(state.train_state.step + 1)
        result = inner(*args, **kwargs)
        self.building = False
        self._steps += 1
        if result[3]:
            return result
        self.iteration = state.train_state.step + 1
        self._samples.end(self.iteration, self._config.checkpoint.save)
        self._report_step(result[0], time.perf_counter() - started, optimizer)
        return result

    def _drop(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        inner(*args, **kwargs)
        self.iteration += 1
        self._samples.end(self.iteration, self._config.checkpoint.save, SKIPPED)
        self._reporter.send("skipped", iteration=self.iteration)

    def _record(self, loss: float | None, seconds: float, optimizer: Any) -> dict[str, Any]:
        config, batch = self._config, get_current_global_batch_size()
        if diffusion.is_diffusion(config):
            tokens, flops = diffusion.work(config, self._state, batch)
        else:
            tokens = batch * config.model.seq_length
            flops = flop_utils.num_floating_point_operations(config, batch_size=batch)
        return {
            "iteration": self.iteration,
            "trainIters": config.train.train_iters,
            "lmLoss": loss,
            "learningRate": get_canonical_lr_for_logging(optimizer.param_groups),
            "tokens": tokens,
            "stepSeconds": seconds,
            "tokensPerSecond": tokens / seconds,
            "tflopsPerGpu": flops / (seconds * 1e12 * torch.distributed.get_world_size()),
            "consumedSamples": self.iteration * batch,
        }
