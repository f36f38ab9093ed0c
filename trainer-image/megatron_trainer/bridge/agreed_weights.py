"""Weights on which all ranks of a start agree: rank 0 finds and records them, the others read its record.

The run whose weights they are may train on meanwhile, so ranks that look for themselves would find other
iterations.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from megatron_contract.bridge_run import BridgeRun
from megatron_contract.exit_codes import ExitCode

from megatron_trainer.bridge import starting_weights
from megatron_trainer.bridge.starting_weights import StartingWeights
from megatron_trainer.bridge.weights_record import FILE, WeightsRecord
from megatron_trainer.checkpoints import selection
from megatron_trainer.flags import BRIDGE_FORMAT
from megatron_trainer.telemetry.reporter import GENERATION_ENV, LEASE_ENV, RESUME_ENV
from megatron_trainer.worker.failures import RankError

WAIT_SECONDS: Final = 600.0
"""For rank 0, which may start later, and for a volume whose clients see a new file late."""
_POLL_SECONDS: Final = 0.1
_SAVE: Final = "checkpoint.save"


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a run's ranks."""

    rank: int
    resume_from: int | None
    """The iteration of the run's own checkpoint, None for the beginning."""
    name: str
    """The same on all ranks; no other start has it."""

    @classmethod
    def from_environment(cls) -> Self:
        """The start that the launcher has described to this rank."""
        resume_from = os.environ.get(RESUME_ENV)
        name = f"{os.environ.get(LEASE_ENV, '')}/{os.environ.get(GENERATION_ENV, '')}"
        return cls(int(os.environ.get("RANK", "0")), int(resume_from) if resume_from else None, name)


def of_run(run: BridgeRun, start: Start | None, *, adapts: bool) -> StartingWeights | None:
    """The weights of a rank, None for random ones. `start` is None to check the run before one."""
    asked, save = run.overrides.get(starting_weights.FIELD), run.overrides.get(_SAVE)
    if asked is None:
        return None
    folders = Path(str(asked)), Path(str(save)) if save is not None else None
    if start is None:
        return before_start(*folders, adapts=adapts)
    return of_start(*folders, start, adapts=adapts)


def of_start(asked: Path, save: Path | None, start: Start, *, adapts: bool) -> StartingWeights:
    """The weights of a rank whose run is given the folder `asked`, saves to `save` and may train adapters.

    A run that resumes without adapters has all weights in its own checkpoint. Raises RankError with
    BAD_DATA as `starting_weights.find` does, with WORKER_DIED if rank 0 records none in WAIT_SECONDS.
    """
    if save is None:
        return starting_weights.find(asked)
    if start.resume_from is None:
        if start.rank == 0:
            return _record(asked, save, start)
        return _taken(_wait(save, lambda record: record.start == start.name))
    if not adapts:
        return StartingWeights(asked, selection.directory(save, start.resume_from))
    record = WeightsRecord.read(save)
    if record is None or record.asked != asked:
        if start.rank == 0:
            return _record(asked, save, start)
        record = _wait(save, lambda record: record.asked == asked)
    starting_weights.require(record, save)
    return _taken(record)


def before_start(asked: Path, save: Path | None, *, adapts: bool) -> StartingWeights:
    """The weights that the next start of a run would take now, for its check; nothing is recorded."""
    newest = selection.newest_complete(save, BRIDGE_FORMAT) if save is not None else None
    if save is None or newest is None:
        return starting_weights.find(asked)
    if not adapts:
        return StartingWeights(asked, selection.directory(save, newest))
    record = WeightsRecord.read(save)
    if record is None or record.asked != asked:
        return starting_weights.find(asked)
    starting_weights.require(record, save)
    return _taken(record)


def _record(asked: Path, save: Path, start: Start) -> StartingWeights:
    found = starting_weights.find(asked)
    found.record(start.name).write(save)
    return found


def _taken(record: WeightsRecord) -> StartingWeights:
    return StartingWeights(record.asked, record.weights, record.adapters)


def _wait(save: Path, accepted: Callable[[WeightsRecord], bool]) -> WeightsRecord:
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        record = WeightsRecord.read(save)
        if record is not None and accepted(record):
            return record
        time.sleep(_POLL_SECONDS)
    raise RankError(
        ExitCode.WORKER_DIED,
        f"rank 0 has recorded no weights in {save / FILE} for {WAIT_SECONDS:.0f} s: all nodes must mount "
        "the same volume there",
    )
