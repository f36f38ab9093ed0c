"""Every stage of a training run at which Megatron can reject an argument list.

Megatron's own functions do all of it. Stand-ins, because there is no GPU here: the properties of an H100,
Transformer Engine where it is not installed, and torch's fake process group of the full world size.
"""

import argparse
import contextlib
import dataclasses
import importlib.metadata
import io
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from megatron.core import num_microbatches_calculator as microbatches
from megatron.core import parallel_state
from megatron.core.models.common.embeddings import rope_utils
from megatron.core.transformer import transformer_config
from megatron.core.transformer.enums import LayerType
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_block import get_num_layers_to_build
from megatron.training import argument_utils, arguments, global_vars, initialize, training
from megatron_trainer.worker import gpt
from torch.testing._internal.distributed.fake_pg import FakeStore

_HAS_TRANSFORMER_ENGINE = any(importlib.metadata.distributions(name="transformer-engine"))


class NotAccepted(Exception):
    """Megatron rejected the arguments: the stage and its error message."""


@dataclasses.dataclass
class Started:
    """What Megatron made of an argument list."""

    parsed: dict[str, Any]
    """The arguments as given, before validation."""
    args: argparse.Namespace
    """After all stages."""
    model: Any
    """GPTModelConfig, with the TransformerConfig in `.transformer`."""
    optimizer: Any
    ddp: Any
    container: Any
    """PretrainConfigContainer."""
    scheduler: Any
    """OptimizerParamScheduler."""
    stage_layers: list[list[int]]
    """Layers by virtual chunk and pipeline rank."""
    micro_batches: int
    samples: tuple[int, int, int]
    """Train, validation and test samples."""
    degrees: dict[str, int]
    """Sizes of the process groups."""
    tokenizer: str
    """What was built, and how many tokens it has."""
    output: str
    """What Megatron printed."""


class Megatron:
    """Megatron, driven stage by stage."""

    def __init__(self, tokenizers: Mapping[str, str], parser: argparse.ArgumentParser) -> None:
        self._tokenizers = dict(tokenizers)
        self._actions = parser._option_string_actions
        self._degrees: dict[tuple[int, ...], dict[str, int]] = {}

    @classmethod
    @contextlib.contextmanager
    def with_gpu_stand_in(cls, tokenizers: Mapping[str, str]) -> Iterator["Megatron"]:
        """Undo the stand-ins, the environment and the signal handler at the end."""
        h100 = SimpleNamespace(major=9, minor=0, total_memory=80 << 30, name="stand-in for an H100")
        parser = arguments.add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
        logging_before = logging.root.manager.disable
        handler = signal.getsignal(signal.SIGTERM)
        with contextlib.ExitStack() as undo:
            undo.callback(logging.disable, logging_before)
            undo.callback(signal.signal, signal.SIGTERM, handler)
            undo.callback(_end_process_groups)
            undo.callback(global_vars.unset_global_variables)
            undo.enter_context(_environment(CUDA_DEVICE_MAX_CONNECTIONS="1", RANK="0", WORLD_SIZE="1"))
            for module, name, stand_in in (
                (torch.cuda, "get_device_properties", lambda *_: h100),
                (torch.cuda, "get_device_capability", lambda *_: (h100.major, h100.minor)),
                (torch.cuda, "device_count", lambda: 8),
                (torch.cuda, "current_device", lambda: torch.device("meta")),
                (training, "update_train_iters", _counted_once(training.update_train_iters)),
                *([] if _HAS_TRANSFORMER_ENGINE else _transformer_engine_stand_ins()),
                # The parser takes 0.1 s to build and is the same every time.
                (arguments, "add_megatron_arguments", lambda _: parser),
            ):
                undo.enter_context(_replaced(module, name, stand_in))
            logging.disable(logging.CRITICAL)
            yield cls(tokenizers, parser)

    def dest(self, flag: str) -> str:
        """Where Megatron keeps the flag's value."""
        return self._actions[flag].dest

    def default(self, flag: str) -> object:
        """What Megatron takes without the flag."""
        return self._actions[flag].default

    def start(
        self, words: list[str], world_size: int, *, keep_groups: bool = False, rank: int = 0
    ) -> Started:
        """Run every stage. Raises NotAccepted with the stage and Megatron's words.

        Process groups of sizes that were met before are made again only to keep them, for a model of `rank`.
        """
        global_vars.unset_global_variables()
        os.environ["WORLD_SIZE"], os.environ["RANK"] = str(world_size), str(rank)
        # As the operator sets it.
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "32" if "--use-megatron-fsdp" in words else "1"
        words = [self._tokenizers.get(word, word) for word in words]
        captured = io.StringIO()
        with contextlib.redirect_stdout(captured), contextlib.redirect_stderr(captured):
            args = _stage("parse_args", captured, lambda: _parse(words))
            parsed = dict(vars(args))
            _stage("validate_args", captured, lambda: arguments.validate_args(args))
            _stage("set_global_variables", captured, lambda: global_vars.set_global_variables(args))
            model = _stage("TransformerConfig", captured, lambda: gpt.model_config(args))
            container = _stage(
                "configs", captured, lambda: argument_utils.pretrain_cfg_container_from_args(args, model)
            )
            degrees = _stage("process groups", captured, lambda: self._process_groups(args, keep_groups))
            stages = _stage("pipeline stages", captured, lambda: _stage_layers(args, model.transformer))
            scheduler = _stage("learning rate", captured, lambda: _scheduler(args))
            samples = _stage("samples", captured, training.get_train_valid_test_num_samples)
        return Started(
            parsed=parsed,
            args=args,
            model=model,
            optimizer=container.optimizer,
            ddp=container.ddp,
            container=container,
            scheduler=scheduler,
            stage_layers=stages,
            micro_batches=microbatches.get_num_microbatches(),
            samples=samples,
            degrees=degrees,
            tokenizer=f"{args.tokenizer_type} of {global_vars.get_tokenizer().vocab_size}",
            output=captured.getvalue(),
        )

    def _process_groups(self, args: argparse.Namespace, keep: bool) -> dict[str, int]:
        key = (
            args.world_size,
            args.tensor_model_parallel_size,
            args.pipeline_model_parallel_size,
            args.virtual_pipeline_model_parallel_size or 1,
            args.context_parallel_size,
            args.expert_model_parallel_size,
            args.expert_tensor_parallel_size,
        )
        if keep or key not in self._degrees:
            _end_process_groups()
            torch.distributed.init_process_group(
                "fake", store=FakeStore(), rank=args.rank, world_size=args.world_size
            )
            # gloo groups would meet over the network; the fake ones stand for them.
            args.use_gloo_process_groups, asked = False, args.use_gloo_process_groups
            initialize._initialize_distributed(None, None, None)
            args.use_gloo_process_groups = asked
            self._degrees[key] = {
                "tensor": parallel_state.get_tensor_model_parallel_world_size(),
                "pipeline": parallel_state.get_pipeline_model_parallel_world_size(),
                "context": parallel_state.get_context_parallel_world_size(),
                "data": parallel_state.get_data_parallel_world_size(),
                "expert": parallel_state.get_expert_model_parallel_world_size(),
                "expert_tensor": parallel_state.get_expert_tensor_parallel_world_size(),
                "expert_data": parallel_state.get_expert_data_parallel_world_size(),
            }
        return self._degrees[key]


def _transformer_engine_stand_ins() -> Iterator[tuple[Any, str, object]]:
    """What arguments and configuration ask of Transformer Engine, as (module, name, stand-in)."""
    for module in (arguments, transformer_config):
        yield module, "is_te_min_version", lambda *_, **__: True
    for name in ("fused_apply_rotary_pos_emb", "fused_apply_rotary_pos_emb_thd"):
        yield rope_utils, name, object()
    for name in vars(moe_utils):
        if name.startswith("fused_"):
            yield moe_utils, name, object()


def _counted_once(count: Callable[[argparse.Namespace], None]) -> Callable[[argparse.Namespace], None]:
    """Megatron counts the iterations of a batch ramp-up one by one, up to a second; the answer is kept."""
    known: dict[tuple[object, ...], int] = {}

    def counted(args: argparse.Namespace) -> None:
        key = (args.train_iters, args.train_samples, args.step_batch_size_schedule, args.seq_length)
        key = (*key, args.global_batch_size, args.micro_batch_size, args.data_parallel_size)
        if key in known:
            args.train_iters = known[key]
        else:
            count(args)
            known[key] = args.train_iters

    return counted


def _parse(words: list[str]) -> argparse.Namespace:
    before, sys.argv = sys.argv, ["megatron-train", *words]
    try:
        return arguments.parse_args()
    finally:
        sys.argv = before


def _stage_layers(args: argparse.Namespace, config: Any) -> list[list[int]]:
    chunks = args.virtual_pipeline_model_parallel_size
    if config.pipeline_model_parallel_layout is not None:
        stages = config.pipeline_model_parallel_layout.layout
        return [[rank[chunk].count(LayerType.decoder) for rank in stages] for chunk in range(chunks or 1)]
    return [
        [
            get_num_layers_to_build(config, vp_stage=chunk if chunks else None, pp_rank=rank)
            for rank in range(args.pipeline_model_parallel_size)
        ]
        for chunk in range(chunks or 1)
    ]


def _scheduler(args: argparse.Namespace) -> Any:
    group = {"lr": 0.0, "weight_decay": 0.0, "max_lr": args.lr, "min_lr": args.min_lr, "params": []}
    return training.get_optimizer_param_scheduler(SimpleNamespace(param_groups=[group]))


def _stage[Result](name: str, captured: io.StringIO, run: Callable[[], Result]) -> Result:
    try:
        return run()
    except SystemExit:
        lines = [line for line in captured.getvalue().splitlines() if line.strip()]
        raise NotAccepted(f"{name}: {lines[-1] if lines else 'ended the process'}") from None
    except Exception as error:
        raise NotAccepted(f"{name}: {type(error).__name__}: {error}") from error


def _end_process_groups() -> None:
    if torch.distributed.is_initialized():
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _replaced(module: Any, name: str, stand_in: object) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, stand_in)
    try:
        yield
    finally:
        setattr(module, name, before)
