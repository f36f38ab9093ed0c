"""One rank: Megatron's own pretrain(), with its flags unchanged and its ways to end made plain.

The launcher forks this from a warm parent, or starts it as a module where a fork will not do.
"""

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from megatron.core.enums import ModelType
from megatron.training import get_args, get_tokenizer, pretrain
from megatron.training.argument_utils import pretrain_cfg_container_from_args
from megatron.training.arguments import parse_and_validate_args
from megatron.training.utils import get_blend_and_blend_per_split
from megatron_contract import environment
from megatron_contract.environment import ENV_PLATFORM, PROGRESS_FILE
from megatron_contract.exit_codes import ExitCode
from torch.distributed.checkpoint.api import CheckpointException

from megatron_trainer.checkpoints import async_checkpoint_writers
from megatron_trainer.checkpoints.checkpoint_lease import NotOwner
from megatron_trainer.checkpoints.volume import free_bytes, readable
from megatron_trainer.health import preflight, stacks
from megatron_trainer.health.loss_spikes import SpikeWatch
from megatron_trainer.health.preflight import PeerFailed, PreflightFailed
from megatron_trainer.launcher.flags import resume
from megatron_trainer.telemetry.reporter import (
    FINISHED,
    PREFLIGHT_ENV,
    RESUME_ELSEWHERE,
    RESUME_ENV,
    SKIP_ENV,
    Reporter,
)
from megatron_trainer.worker import gpt, tracebacks
from megatron_trainer.worker.megatron_hooks import BadLoss, LoadedAnother, Observer, Unreadable

# Exit code of Megatron's rerun state machine (megatron.core.rerun_state_machine).
FAILED_ON_RESULT_VALIDATION = 17

# How Megatron says that its flags do not go together: plain exceptions, asserts foremost.
_REFUSALS = (AssertionError, ValueError, TypeError, KeyError, NotImplementedError)

_PEER_LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Connection refused",
    "remote process exited or there was a network error",
    "Connection was likely closed",
    "recvValue failed",
    "failed to recv",
    "Timed out waiting",
)


class RankFailed(Exception):
    """The rank ends with `code` for the reason that the text says."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.iteration: int | None = None
        self.preflight = False
        self.unreadable: int | None = None


def _refuse(_parser: argparse.ArgumentParser, message: str) -> NoReturn:
    raise RankFailed(ExitCode.USAGE, f"Megatron refuses the flags: {message}")


def _where(error: BaseException) -> str:
    """The text of an error, or the source line that raised it: many of Megatron's asserts carry no text."""
    text = " ".join(str(error).split())
    if text:
        return text
    frames = traceback.extract_tb(error.__traceback__)
    return frames[-1].line or type(error).__name__ if frames else type(error).__name__


def parse(argv: Sequence[str]) -> Any:
    """Let Megatron read and check its flags and build its tokenizer.

    Raises RankFailed with USAGE where Megatron refuses a flag, BAD_DATA where the tokenizer or a data file is
    missing.
    """
    sys.argv = ["megatron-train", *argv]
    argparse.ArgumentParser.error = _refuse  # type: ignore[method-assign,assignment]
    try:
        args = parse_and_validate_args(args_defaults={"tokenizer_type": "HuggingFaceTokenizer"})
    except (FileNotFoundError, OSError) as error:
        raise RankFailed(ExitCode.BAD_DATA, f"tokenizer: {_where(error)}") from error
    except (*_REFUSALS, RuntimeError) as error:
        raise _refused(error) from error
    _require_room_for_tokens(args)
    _require_data(args)
    return args


def _refused(error: Exception) -> RankFailed:
    return RankFailed(ExitCode.USAGE, f"Megatron refuses the flags: {_where(error)}")


def _model_config(args: Any) -> Any:
    """Megatron's configuration of the model. Raises RankFailed with USAGE where flags do not go together."""
    try:
        return gpt.model_config(args)
    except _REFUSALS as error:
        raise _refused(error) from error


def _require_room_for_tokens(args: Any) -> None:
    """Megatron takes --padded-vocab-size at its word; a larger token would lie outside the embedding."""
    tokens = get_tokenizer().vocab_size
    if args.padded_vocab_size is not None and tokens > args.padded_vocab_size:
        raise RankFailed(
            ExitCode.BAD_DATA,
            f"the tokenizer has {tokens} entries, --padded-vocab-size is {args.padded_vocab_size}; "
            "set it to at least as many",
        )


def _require_data(args: Any) -> None:
    if args.mock_data:
        return
    blend, per_split = get_blend_and_blend_per_split(args)
    prefixes = [prefix for part in [blend, *(per_split or [])] if part for prefix in part[0]]
    if not prefixes:
        raise RankFailed(ExitCode.BAD_DATA, "no data: give --data-path (or --mock-data for random tokens)")
    missing = [
        str(path)
        for prefix in prefixes
        for path in (Path(f"{prefix}.bin"), Path(f"{prefix}.idx"))
        if not path.is_file()
    ]
    if missing:
        raise RankFailed(ExitCode.BAD_DATA, f"--data-path: not found: {', '.join(missing)}")


def _classify(error: BaseException) -> RankFailed:
    if isinstance(error, RankFailed):
        return error
    if isinstance(error, LoadedAnother):
        return RankFailed(ExitCode.INTERNAL, str(error))
    if isinstance(error, PreflightFailed):
        failure = RankFailed(ExitCode.WORKER_DIED, str(error))
        failure.preflight = True
        return failure
    if isinstance(error, NotOwner | PeerFailed):
        return RankFailed(ExitCode.PEER_LOST, str(error))
    if isinstance(error, BadLoss):
        return RankFailed(ExitCode.LOSS_NOT_FINITE, str(error))
    if isinstance(error, Unreadable):
        return _not_loaded(error)
    if isinstance(error, CheckpointException):
        return _not_saved(error)
    text = _where(error)
    if any(f"found {what} in local" in text for what in ("NaN", "Inf")):
        return RankFailed(ExitCode.LOSS_NOT_FINITE, text)
    if any(sign in text for sign in _PEER_LOST):
        return RankFailed(ExitCode.PEER_LOST, text)
    return RankFailed(ExitCode.WORKER_DIED, f"{type(error).__name__}: {text}")


def _not_loaded(error: Unreadable) -> RankFailed:
    """A checkpoint that cannot be loaded, by the rank that met its damage; the others only lose a peer."""
    cause = error.__cause__
    assert cause is not None
    if isinstance(cause, CheckpointException):
        if not cause.failures:
            return RankFailed(ExitCode.PEER_LOST, f"{error}, another rank knows why")
        cause = next(iter(cause.failures.values()))[0]
    text = _where(cause)
    if any(sign in text for sign in _PEER_LOST):
        return RankFailed(ExitCode.PEER_LOST, text)
    failure = RankFailed(ExitCode.WORKER_DIED, f"{error}: {type(cause).__name__}: {text[:300]}")
    if not isinstance(cause, OSError):
        failure.unreadable = error.iteration
    return failure


def _not_saved(error: CheckpointException) -> RankFailed:
    """A failed save: its writers' words without the tracebacks, and the room on the volume, the usual reason.

    The rank that coordinates knows why; the others only hear that it failed.
    """
    if not error.failures:
        return RankFailed(ExitCode.PEER_LOST, "a checkpoint could not be written, another rank knows why")
    words = _where(error).rpartition("RuntimeError: ")[2]
    room = ""
    with contextlib.suppress(OSError):
        room = f"; {readable(free_bytes(get_args().save))} free on the volume of {get_args().save}"
    return RankFailed(ExitCode.WORKER_DIED, f"a checkpoint could not be written ({words[:300]}){room}")


def _run(argv: Sequence[str], reporter: Reporter) -> None:
    resume_from = os.environ.get(RESUME_ENV)
    args = parse(resume(argv) if resume_from else argv)
    skip = {int(word) for word in os.environ.get(SKIP_ENV, "").split()}
    args.iterations_to_skip = sorted(skip.union(args.iterations_to_skip))
    observer = Observer(
        reporter, int(resume_from) if resume_from else None, _spikes(args), lambda: _preflight(reporter)
    )
    observer.install()
    tracebacks.make_picklable()
    async_checkpoint_writers.fork_writers(lambda how: _die(reporter, how))
    try:
        pretrain(
            pretrain_cfg_container_from_args(args, _model_config(args)),
            gpt.datasets,
            ModelType.encoder_or_decoder,
            gpt.forward_step,
            get_embedding_ranks=gpt.embedding_ranks,
        )
    except SystemExit as end:
        raise _early_end(end.code, observer.iteration) from end
    except Exception as error:
        if observer.building and isinstance(error, _REFUSALS):
            raise _refused(error) from error
        raise _failed(error, observer.stepping) from error
    reporter.send("finished", iteration=observer.iteration)


def _failed(error: Exception, stepping: int | None) -> RankFailed:
    """What an error means, and in which iteration's step it was raised: there it may come again."""
    failure = _classify(error)
    if failure.code in (ExitCode.WORKER_DIED, ExitCode.LOSS_NOT_FINITE):
        failure.iteration = stepping
    return failure


def _spikes(args: Any) -> SpikeWatch:
    factor = os.environ.get(environment.ENV_LOSS_SPIKE_FACTOR)
    window = os.environ.get(environment.ENV_LOSS_SPIKE_WINDOW) or environment.DEFAULT_LOSS_SPIKE_WINDOW
    file = Path(args.save) / PROGRESS_FILE if args.save else None
    return SpikeWatch(float(factor) if factor else None, int(window), file)


def _preflight(reporter: Reporter) -> None:
    """Check this rank's device and connections, where the launchers ask for it."""
    if not os.environ.get(PREFLIGHT_ENV):
        return

    def late(how: str, others: bool) -> None:
        _die(reporter, how, ExitCode.PEER_LOST if others else ExitCode.WORKER_DIED, preflight=not others)

    reporter.send("phase", phase="loading")
    preflight.run(torch.distributed.distributed_c10d._get_default_store(), late)


def _die(
    reporter: Reporter, how: str, code: ExitCode = ExitCode.WORKER_DIED, preflight: bool = False
) -> NoReturn:
    """End the rank from a thread while its main thread waits for something that will not come."""
    print(f"megatron-train: rank {reporter.rank}: {how}", file=sys.stderr, flush=True)
    reporter.send("failed", exitCode=int(code), message=how, preflight=preflight)
    os._exit(int(code))


def _early_end(code: object, iteration: int) -> RankFailed:
    """Megatron leaves its loop by sys.exit: 0 for a signal, a time limit, an interval, a garbled tracker."""
    if code == FAILED_ON_RESULT_VALIDATION:
        return RankFailed(
            ExitCode.LOSS_NOT_FINITE, f"a result of iteration {iteration + 1} failed validation twice"
        )
    if code == RESUME_ELSEWHERE:
        return RankFailed(
            RESUME_ELSEWHERE,
            f"iteration {iteration + 1}: Megatron asks to resume on another GPU, to tell why",
        )
    if code in (None, 0):
        trained = getattr(get_args(), "train_iters", None)
        return RankFailed(ExitCode.TERMINATED, f"Megatron stopped at iteration {iteration} of {trained}")
    return RankFailed(ExitCode.INTERNAL, f"Megatron ended with exit code {code} at iteration {iteration}")


def _require_gpus() -> None:
    """One GPU a rank. A pod that sees fewer is worth another start, on another node."""
    seen, ranks = torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if os.environ.get(ENV_PLATFORM) != "cpu" and seen < ranks:
        raise RankFailed(
            ExitCode.WORKER_DIED,
            f"this pod sees {seen} GPUs for {ranks} ranks: a GPU is lost, or the pod asks for too few",
        )


def check(argv: Sequence[str]) -> int:
    """Count GPUs, read the flags, the tokenizer and the names of the data files. Returns the exit code."""
    reporter = Reporter()
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # noqa: PTH123
        try:
            _require_gpus()
            _model_config(parse(argv))
        except BaseException as error:
            failure = _classify(error)
            reporter.send("failed", exitCode=int(failure.code), message=str(failure)[:2000])
            return int(failure.code)
    return int(ExitCode.OK)


def run_rank(argv: Sequence[str]) -> int:
    """Train as the rank that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say.

    Returns the exit code: FINISHED, one of the contract, or Megatron's RESUME_ELSEWHERE.
    """
    reporter = Reporter()
    stacks.answer_with_stacks(reporter.rank)
    try:
        _run(argv, reporter)
    except BaseException as error:
        failure = _classify(error)
        if failure.code in (ExitCode.WORKER_DIED, ExitCode.INTERNAL):
            traceback.print_exc()
        print(f"megatron-train: rank {reporter.rank}: {failure}", file=sys.stderr, flush=True)
        reporter.send(
            "failed",
            exitCode=int(failure.code),
            message=str(failure)[:2000],
            iteration=failure.iteration,
            preflight=failure.preflight,
            unreadable=failure.unreadable,
        )
        return int(failure.code)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return FINISHED


if __name__ == "__main__":
    sys.exit(run_rank(sys.argv[1:]))
