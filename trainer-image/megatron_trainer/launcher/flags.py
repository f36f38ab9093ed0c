"""The few Megatron flags that the launcher reads, and those it adds. Everything else passes through
unread."""

import argparse
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

DATA_CACHE = "data-cache"
_DATA_FLAGS = {"--data-path", "--data-args-path", "--train-data-path", "--per-split-data-args-path"}


@dataclass(frozen=True)
class Flags:
    """What the launcher needs to know of a run. Paths are as given to Megatron.

    `fast` is the directory of Megatron's non-persistent checkpoints, which keeps the newest one or two.
    """

    save: Path | None
    load: Path | None
    train_iters: int | None
    ckpt_format: str
    fast: Path | None = None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="megatron-train", add_help=False, allow_abbrev=False)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--load", type=Path)
    parser.add_argument("--train-iters", type=int)
    parser.add_argument("--ckpt-format", default="torch_dist")
    parser.add_argument("--non-persistent-ckpt-type")
    parser.add_argument("--non-persistent-global-ckpt-dir", type=Path)
    return parser


class BadFlags(ValueError):
    """A flag that the launcher itself reads has no usable value."""


def read(argv: Sequence[str]) -> Flags:
    """Read the flags that concern the launcher. Raises BadFlags with argparse's own words."""
    parser = _parser()
    parser.exit_on_error = False
    try:
        known, _ = parser.parse_known_args(list(argv))
    except argparse.ArgumentError as error:
        raise BadFlags(f"Megatron refuses the flags: {error}") from error
    return Flags(known.save, known.load, known.train_iters, known.ckpt_format, _fast(known))


def _fast(known: argparse.Namespace) -> Path | None:
    kind, save = known.non_persistent_ckpt_type, known.save
    if kind is None:
        return None
    if kind != "global":
        raise BadFlags(
            f"--non-persistent-ckpt-type {kind}: what it loads cannot be checked before a start; use global, "
            "with --non-persistent-global-ckpt-dir on a volume that all pods share, or in a run of one pod"
        )
    # Megatron's own default.
    return known.non_persistent_global_ckpt_dir or (save / "non_persistent" if save else None)


# With these a start takes no more than weights from --load; a restart must take everything from --save.
_FRESH_START = {"--finetune", "--no-load-optim", "--no-load-rng"}


def resume(argv: Sequence[str]) -> list[str]:
    """The flags of a restart: load all from where the run itself saved, whatever it began with."""
    kept = [word for word in argv if word not in _FRESH_START]
    return [*kept, "--load", str(read(argv).save)]


def complete(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the flags with those added that recovery needs, and the words added.

    Added where they are not given: --load, so that a restarted run goes on from where it saved;
    --exit-signal-handler, so that SIGTERM saves; --override-opt-param-scheduler, so that a run whose
    --train-iters was edited resumes with the schedule it asks for instead of dying over the difference;
    --data-cache-path beside the checkpoints, since the data may be mounted read-only and all pods share the
    index; and with --async-save the persistent worker, without which Megatron drops --async-save, and its
    own writer where NVRx is not installed.
    """
    given = {word.split("=", 1)[0] for word in argv if word.startswith("--")}
    flags = read(argv)
    added: list[str] = []
    if flags.save is not None:
        if flags.load is None:
            added += ["--load", str(flags.save)]
        if "--exit-signal-handler" not in given:
            added.append("--exit-signal-handler")
        if "--data-cache-path" not in given and given & _DATA_FLAGS:
            added += ["--data-cache-path", str(flags.save / DATA_CACHE)]
    if not given & {"--override-opt-param-scheduler", "--use-checkpoint-opt-param-scheduler"}:
        added.append("--override-opt-param-scheduler")
    if "--async-save" in given:
        if "--use-persistent-ckpt-worker" not in given:
            added.append("--use-persistent-ckpt-worker")
        if "--async-strategy" not in given and importlib.util.find_spec("nvidia_resiliency_ext") is None:
            added += ["--async-strategy", "mcore"]
    return [*argv, *added], added
