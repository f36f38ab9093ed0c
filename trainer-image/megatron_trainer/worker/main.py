"""One rank: runs Megatron's own pretrain() with its flags unchanged, and reports how it ends.

The launcher forks this from the fork server, or runs it as a module if CUDA does not allow a fork, with
`rank` or `preflight` before the flags.
"""

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import torch
from megatron.core.enums import ModelType
from megatron.training import pretrain
from megatron.training.argument_utils import pretrain_cfg_container_from_args
from megatron_contract import environment
from megatron_contract.environment import PROGRESS_FILE
from megatron_contract.exit_codes import ExitCode

from megatron_trainer import engine
from megatron_trainer.checkpoints import async_checkpoint_writers
from megatron_trainer.flags import resume
from megatron_trainer.health import stacks
from megatron_trainer.health.loss_spikes import LossSpikeDetector
from megatron_trainer.read_errors import is_temporary
from megatron_trainer.telemetry.reporter import FINISHED, RESUME_ENV, SKIP_ENV, Reporter
from megatron_trainer.worker import dataset_helpers, gpt, tracebacks
from megatron_trainer.worker.arguments import load_only_what_exists, model_config, parse, require_gpus
from megatron_trainer.worker.collective_recorder import record_collectives
from megatron_trainer.worker.failures import (
    FLAG_REJECTIONS,
    RankError,
    classify,
    classify_early_exit,
    classify_in_loop,
    flags_refused,
)
from megatron_trainer.worker.megatron_hooks import MegatronHooks


def _train(argv: Sequence[str], reporter: Reporter, forked: bool) -> None:
    """Run Megatron's pretrain() with hooks. Raises RankError unless the last iteration is done."""
    tracebacks.make_picklable()
    async_checkpoint_writers.install(
        argv, lambda how: _die(reporter, RankError(ExitCode.WORKER_DIED, how)), forked
    )
    require_gpus()
    resume_from = os.environ.get(RESUME_ENV)
    args = parse(resume(argv) if resume_from else argv)
    if not resume_from:
        load_only_what_exists(args)
    skip = {int(word) for word in os.environ.get(SKIP_ENV, "").split()}
    args.iterations_to_skip = sorted(skip.union(args.iterations_to_skip))
    hooks = MegatronHooks(reporter, int(resume_from) if resume_from else None, loss_spike_detector(args.save))
    hooks.install()
    dataset_helpers.skip_build()
    try:
        pretrain(
            pretrain_cfg_container_from_args(args, model_config(args)),
            gpt.datasets,
            ModelType.encoder_or_decoder,
            gpt.forward_step,
            get_embedding_ranks=gpt.embedding_ranks,
        )
    except SystemExit as end:
        raise classify_early_exit(end.code, hooks.iteration) from end
    except Exception as error:
        if hooks.building and isinstance(error, FLAG_REJECTIONS) and not is_temporary(error):
            raise flags_refused(error) from error
        raise classify_in_loop(error, hooks.iteration, hooks.stepping) from error
    finally:
        hooks.close()
    reporter.send("finished", iteration=hooks.iteration)


def loss_spike_detector(save: str | None) -> LossSpikeDetector:
    """Return the detector that the environment asks for, with the history of the run in `save`."""
    factor = os.environ.get(environment.ENV_LOSS_SPIKE_FACTOR)
    window = os.environ.get(environment.ENV_LOSS_SPIKE_WINDOW) or environment.DEFAULT_LOSS_SPIKE_WINDOW
    file = Path(save) / PROGRESS_FILE if save else None
    return LossSpikeDetector(float(factor) if factor else None, int(window), file)


def _die(reporter: Reporter, failure: RankError) -> NoReturn:
    """End the rank from a thread while its main thread is blocked."""
    print(f"megatron-train: rank {reporter.rank}: {failure}", file=sys.stderr, flush=True)
    reporter.send("failed", **failure.report().to_json())
    os._exit(int(failure.code))


def check(argv: Sequence[str]) -> int:
    """Check GPUs, flags, tokenizer and the names of the data files. Returns the exit code."""
    reporter = Reporter()
    with open(os.devnull, "w") as devnull, contextlib.redirect_stdout(devnull):  # noqa: PTH123
        try:
            require_gpus()
            model_config(parse(argv))
        except BaseException as error:
            failure = classify(error)
            reporter.send("failed", **failure.report().to_json())
            return int(failure.code)
    return int(ExitCode.OK)


def run_rank(
    argv: Sequence[str],
    forked: bool = False,
    train: Callable[[Sequence[str], Reporter, bool], None] = _train,
) -> int:
    """Train as the rank given by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

    `forked`: this process was forked from the fork server, which has not used CUDA. Returns the exit code:
    FINISHED, one of the contract, or Megatron's RESUME_ELSEWHERE.
    """
    reporter = Reporter()
    stacks.register_stack_dump(reporter.rank)
    record_collectives(reporter.rank, engine.read(argv).save)
    try:
        train(argv, reporter, forked)
    except BaseException as error:
        failure = classify(error)
        if failure.code in (ExitCode.WORKER_DIED, ExitCode.INTERNAL):
            traceback.print_exc()
        print(f"megatron-train: rank {reporter.rank}: {failure}", file=sys.stderr, flush=True)
        reporter.send("failed", **failure.report().to_json())
        return int(failure.code)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return FINISHED


if __name__ == "__main__":
    sys.exit({"rank": run_rank, "preflight": check}[sys.argv[1]](sys.argv[2:]))
