"""What the launcher reads of a Megatron-Bridge run's arguments, and what it adds to them."""

from collections.abc import Sequence
from pathlib import Path

from megatron_contract.bridge_run import BridgeRun, Value

from megatron_trainer.flags import BRIDGE_FORMAT, FlagError, Flags


def parse(argv: Sequence[str]) -> BridgeRun:
    """Read the arguments. Raises FlagError that names the argument."""
    try:
        return BridgeRun.from_arguments(argv)
    except ValueError as error:
        raise FlagError(str(error)) from error


def read(argv: Sequence[str]) -> Flags:
    """Read the overrides that concern the launcher. Raises FlagError."""
    run = parse(argv)
    _refuse(run)
    iterations = run.overrides.get("train.train_iters")
    workers = run.overrides.get("dataset.num_workers", Flags.num_workers)
    for path, value in (("train.train_iters", iterations), ("dataset.num_workers", workers)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise FlagError(f"{path}: {value!r} is not a whole number")
    return Flags(
        save=_path(run, "checkpoint.save"),
        load=_path(run, "checkpoint.load"),
        train_iters=iterations,  # type: ignore[arg-type]
        ckpt_format=BRIDGE_FORMAT,
        num_workers=workers,  # type: ignore[arg-type]
    )


def complete(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments with those added that recovery needs, and the added words.

    Added unless given: checkpoint.load, so that a restarted run resumes from where it saved, and
    train.exit_signal_handler, so that Bridge saves on SIGTERM. Raises FlagError as `read` does.
    """
    run = parse(argv)
    wanted: dict[str, Value] = {"train.exit_signal_handler": True}
    if (save := read(argv).save) is not None:
        wanted["checkpoint.load"] = str(save)
    added = {path: value for path, value in wanted.items() if path not in run.overrides}
    words = BridgeRun(run.function, added).to_arguments()[1:]
    return [*argv, *words], words


def _path(run: BridgeRun, path: str) -> Path | None:
    value = run.overrides.get(path)
    if value is not None and not isinstance(value, str):
        raise FlagError(f"{path}: {value!r} is not a path")
    return Path(value) if value else None


_ONLY: dict[str, tuple[Value, str]] = {
    "checkpoint.async_save": (False, "the writer that Bridge starts is not watched here"),
    "checkpoint.ckpt_format": ("torch_dist", "other checkpoints cannot be verified before a start"),
    "checkpoint.non_persistent_ckpt_type": (None, "its checkpoints cannot be verified before a start"),
    "checkpoint.most_recent_k": (-1, "the launcher deletes old checkpoints; set MEGATRON_KEEP_CHECKPOINTS"),
    "inprocess_restart.enabled": (False, "the launcher restarts ranks"),
}


def _refuse(run: BridgeRun) -> None:
    for path, (value, why) in _ONLY.items():
        if run.overrides.get(path, value) != value:
            raise FlagError(f"{path}={run.overrides[path]!r}: {why}; leave it out")
