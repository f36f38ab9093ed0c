"""Parses and validates Megatron's flags, and checks what they need: tokenizer, data files, GPUs."""

import argparse
import ctypes
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from megatron.training import get_tokenizer
from megatron.training.arguments import parse_and_validate_args
from megatron.training.utils import get_blend_and_blend_per_split
from megatron_contract.environment import ENV_PLATFORM
from megatron_contract.exit_codes import ExitCode

from megatron_trainer.checkpoints.selection import read_tracker
from megatron_trainer.flags import value_of
from megatron_trainer.read_errors import is_temporary
from megatron_trainer.volume_paths import left_volume
from megatron_trainer.worker import gpt
from megatron_trainer.worker.failures import FLAG_REJECTIONS, RankError, describe, flags_refused

_NO_DRIVER = (
    "no NVIDIA driver in this container (libcuda.so.1 cannot be loaded): the pod must request GPUs "
    "(resourceName of the profile), and its node needs NVIDIA's driver and container toolkit; where the "
    "toolkit is not the node's default runtime, set podTemplate.runtimeClassName of the profile"
)


def _refuse(_parser: argparse.ArgumentParser, message: str) -> NoReturn:
    raise RankError(ExitCode.USAGE, f"Megatron refuses the flags: {message}")


def parse(argv: Sequence[str]) -> Any:
    """Have Megatron parse and validate its flags and build its tokenizer. Returns Megatron's args.

    Raises RankError with USAGE if Megatron rejects a flag, BAD_DATA if the tokenizer is missing or
    wrong or a data file is missing, and OSError for a volume that cannot be read for a while.
    """
    sys.argv = ["megatron-train", *argv]
    argparse.ArgumentParser.error = _refuse  # type: ignore[method-assign,assignment]
    try:
        args = parse_and_validate_args(args_defaults={"tokenizer_type": "HuggingFaceTokenizer"})
    except (OSError, RuntimeError, *FLAG_REJECTIONS) as error:
        if is_temporary(error):
            raise
        _require_reachable(value_of(argv, "tokenizer-model"))
        if isinstance(error, OSError) or _is_of_tokenizer(error):
            raise RankError(ExitCode.BAD_DATA, f"tokenizer: {describe(error)}") from error
        raise flags_refused(error) from error
    _require_vocabulary(args)
    _require_data(args)
    return args


def _is_of_tokenizer(error: Exception) -> bool:
    """Whether files of a tokenizer are missing or wrong: Megatron and sentencepiece raise these types then.

    Others, as that of an unknown prompt format, are of flags.
    """
    if isinstance(error, NotImplementedError) or not isinstance(error, (ValueError, RuntimeError)):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    return any("/core/tokenizers/text/libraries/" in frame.filename for frame in frames)


def _require_reachable(tokenizer: str | None) -> None:
    """Raise OSError while the volume of the tokenizer is away: to transformers its files are missing then."""
    if tokenizer is None:
        return
    try:
        Path(tokenizer).stat()
    except OSError as error:
        if is_temporary(error):
            raise


def load_only_what_exists(args: Any) -> None:
    """Have a run with Megatron FSDP that is planned to start from the beginning look for no checkpoint.

    Before Megatron finds none, it makes the optimizer's states by a step without gradients, which counts in
    Adam's bias correction and decays the weights.
    """
    if args.use_megatron_fsdp and args.load and read_tracker(Path(args.load)) is None:
        args.load = None


def model_config(args: Any) -> Any:
    """Return Megatron's model configuration. Raises RankError with USAGE if flags are incompatible."""
    try:
        return gpt.model_config(args)
    except FLAG_REJECTIONS as error:
        if is_temporary(error):
            raise
        raise flags_refused(error) from error


def _require_vocabulary(args: Any) -> None:
    """Megatron does not check --padded-vocab-size; a larger token would be outside of the embedding."""
    tokens = get_tokenizer().vocab_size
    if args.padded_vocab_size is not None and tokens > args.padded_vocab_size:
        raise RankError(
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
        raise RankError(ExitCode.BAD_DATA, "no data: set --data-path (or --mock-data for random tokens)")
    files = [Path(f"{prefix}{suffix}") for prefix in prefixes for suffix in (".bin", ".idx")]
    for path in files:
        if problem := left_volume(path):
            raise RankError(ExitCode.BAD_DATA, f"--data-path: {problem}")
    missing = [str(path) for path in files if not path.is_file()]
    if missing:
        raise RankError(ExitCode.BAD_DATA, f"--data-path: not found: {', '.join(missing)}")


def require_gpus() -> None:
    """Require CUDA and one GPU per rank, before Megatron asks for a device: its errors there blame the flags.

    Raises RankError with WORKER_DIED: a retry on another node may see all GPUs. INTERNAL if the process
    cannot use CUDA anywhere.
    """
    if os.environ.get(ENV_PLATFORM) == "cpu":
        return
    visible, ranks = torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if visible == 0 and not _has_driver():
        raise RankError(ExitCode.WORKER_DIED, _NO_DRIVER)
    if visible < ranks:
        raise RankError(
            ExitCode.WORKER_DIED,
            f"this pod sees {visible} GPUs for {ranks} ranks: a GPU is lost, or the pod requests too few",
        )
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        everywhere = torch.cuda._is_in_bad_fork() or not torch.backends.cuda.is_built()
        code = ExitCode.INTERNAL if everywhere else ExitCode.WORKER_DIED
        raise RankError(code, f"CUDA cannot be initialised: {describe(error)}") from error


def _has_driver() -> bool:
    """Whether the container has the driver's library, which NVIDIA's container toolkit mounts."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
