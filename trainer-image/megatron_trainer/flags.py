"""The Megatron flags that the launcher reads or adds, and how one is found. Others pass through unread."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from megatron_trainer.errors import TrainerError

DATA_CACHE = "data-cache"
BRIDGE_FORMAT = "bridge"
"""Of checkpoints: torch_dist, with files that Megatron-Bridge writes after the shards."""
MEGATRON_FSDP = "--use-megatron-fsdp"
FSDP_FORMAT = "fsdp_dtensor"
"""Of its checkpoints, which torch's own writer saves: they have no metadata.json."""
_PRETRAINED = "--pretrained-checkpoint"
_DATA_FLAGS = {"--data-path", "--data-args-path", "--train-data-path", "--per-split-data-args-path"}


@dataclass(frozen=True)
class Flags:
    """The flags that the launcher needs. Paths are as given to Megatron.

    `fast` is the directory of Megatron's non-persistent checkpoints, which keeps the newest one or two.
    """

    save: Path | None
    load: Path | None
    train_iters: int | None
    ckpt_format: str
    fast: Path | None = None
    async_strategy: str | None = None
    num_workers: int = 2
    """The data loader's processes of one rank; Megatron's own default."""
    pretrained: Path | None = None
    """The folder whose weights a run without a checkpoint of its own starts from."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="megatron-train", add_help=False, allow_abbrev=False)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--load", type=Path)
    parser.add_argument("--train-iters", type=int)
    parser.add_argument("--ckpt-format", default="torch_dist")
    parser.add_argument("--async-strategy")
    parser.add_argument(_PRETRAINED, type=Path)
    parser.add_argument("--num-workers", type=int, default=Flags.num_workers)
    parser.add_argument("--non-persistent-ckpt-type")
    parser.add_argument("--non-persistent-global-ckpt-dir", type=Path)
    return parser


class FlagError(TrainerError):
    """A flag that the launcher reads has an invalid value."""


def read(argv: Sequence[str]) -> Flags:
    """Read the flags that concern the launcher. Raises FlagError with argparse's message."""
    parser = _parser()
    parser.exit_on_error = False
    try:
        args, _ = parser.parse_known_args(list(argv))
    except argparse.ArgumentError as error:
        raise FlagError(f"Megatron refuses the flags: {error}") from error
    fast = _non_persistent_dir(args)
    return Flags(
        args.save,
        args.load,
        args.train_iters,
        args.ckpt_format,
        fast,
        args.async_strategy,
        args.num_workers,
        args.pretrained_checkpoint,
    )


def _non_persistent_dir(args: argparse.Namespace) -> Path | None:
    kind, save = args.non_persistent_ckpt_type, args.save
    if kind is None:
        return None
    if kind != "global":
        raise FlagError(
            f"--non-persistent-ckpt-type {kind}: its checkpoints cannot be verified before a start; "
            "use global, with --non-persistent-global-ckpt-dir on a volume that all pods share, or in a run "
            "of one pod"
        )
    # Megatron's own default.
    return args.non_persistent_global_ckpt_dir or (save / "non_persistent" if save else None)


_NOT_WITH_FSDP = {
    "--async-save": "the asynchronous writer of Megatron Core 0.19.2 does not take its checkpoints",
    "--non-persistent-ckpt-type": "Megatron Core 0.19.2 loads these checkpoints as torch_dist",
    "--num-experts": "Megatron Core 0.19.2 accumulates the gradients of experts wrongly",
}

# With these a first start takes only weights from --load; a restart must take everything from --save.
_FRESH_START = {"--finetune", "--no-load-optim", "--no-load-rng"}


def resume(argv: Sequence[str]) -> list[str]:
    """Return the flags of a restart: load everything from the run's own save directory.

    Without a tracker there, as where only a checkpoint on the node's disk is complete, Megatron would start
    from --pretrained-checkpoint. Raises FlagError as `read` does.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(_PRETRAINED)
    _, others = parser.parse_known_args(list(argv))
    kept = [word for word in others if word not in _FRESH_START]
    return [*kept, "--load", str(read(argv).save)]


def complete(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the flags with those added that recovery needs, and the added words.

    Added unless given:
      --load: a restarted run resumes from where it saved.
      --exit-signal-handler: Megatron saves on SIGTERM.
      --override-opt-param-scheduler: a run with edited --train-iters resumes with the new schedule instead of
        failing over the difference.
      --data-cache-path, beside the checkpoints: the data may be read-only, and all pods share the index.
      --use-persistent-ckpt-worker, with --async-save: Megatron drops --async-save without it.
      --async-strategy mcore, with --async-save: Megatron's own writer. That of NVRx, its default, is not
        watched here, and Megatron would wait for a dead one.
      --rerun-mode disabled: on a NaN Megatron would end all pods and ask for another GPU, to find out whether
        this one is faulty, before the retry policy sees a failure.

    Raises FlagError as `read` does, for another --async-strategy, and for what Megatron FSDP cannot save or
    load.
    """
    given = {word.split("=", 1)[0] for word in argv if word.startswith("--")}
    flags = read(argv)
    if MEGATRON_FSDP in given and (unsaved := sorted(given & _NOT_WITH_FSDP.keys())):
        raise FlagError(
            f"{unsaved[0]} with {MEGATRON_FSDP}: {_NOT_WITH_FSDP[unsaved[0]]}; leave one of them out"
        )
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
    if "--rerun-mode" not in given:
        added += ["--rerun-mode", "disabled"]
    if "--async-save" in given:
        if "--use-persistent-ckpt-worker" not in given:
            added.append("--use-persistent-ckpt-worker")
        if flags.async_strategy is None:
            added += ["--async-strategy", "mcore"]
        elif flags.async_strategy != "mcore":
            raise FlagError(
                f"--async-strategy {flags.async_strategy}: its writer is not watched, and a dead one would "
                "stop the run; leave it out or set mcore"
            )
    return [*argv, *added], added


def value_of(flags: Sequence[str], name: str) -> str | None:
    """Return the first value of one of Megatron's flags, `name` without its dashes; None without it."""
    for position, word in enumerate(flags):
        if word == f"--{name}" and position + 1 < len(flags):
            return flags[position + 1]
        if word.startswith(f"--{name}="):
            return word.partition("=")[2]
    return None
