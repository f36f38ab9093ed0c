"""Checkpoint directories of example runs, written by the trainer's own writers. Nothing was trained."""

import json
import math
import pickle
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Final
from unittest import mock

from megatron_contract.environment import HANGS_FOLDER, PROGRESS_FILE
from megatron_trainer.checkpoints import selection
from megatron_trainer.checkpoints.checkpoint_lease import CheckpointLease
from megatron_trainer.health.stacks import MAIN_THREAD, RankState
from megatron_trainer.telemetry import reporter, run_journal
from megatron_trainer.telemetry.incidents import FailureKind, FailureReport

UID: Final = "0b5d7c1e-3f7a-4d0e-9c55-6f1f6c7a2b10"
TOKENS: Final = 4_194_304
STEP_SECONDS: Final = 8.0
SAVE_INTERVAL: Final = 500
STARTED: Final = 1_767_258_000.0
"""2026-01-01 09:00 UTC."""


@dataclass(frozen=True, slots=True)
class Start:
    """One generation: its iterations, and what ended the one before it."""

    first: int
    last: int
    kind: FailureKind | None = None
    cause: str = ""
    node: int | None = None
    rank: int | None = None
    detect: float = 30.0
    """Seconds from the last step to the detection."""


EXAMPLE: Final = (
    Start(1, 1730),
    Start(1501, 2460, FailureKind.RANK, "rank 11 was killed by SIGKILL", 1, 11, 2.0),
    Start(
        2001,
        4180,
        FailureKind.HANG,
        "rank 3 is stopped after iteration 2460, all others wait for it (99 s)",
        1,
        3,
        99.0,
    ),
    Start(4001, 6000, FailureKind.POD, "node 2 was replaced", 2, None, 17.0),
)


class _Clock:
    """Stands in for the module `time`."""

    now = STARTED

    def time(self) -> float:
        return self.now


def write_run(save: Path, starts: Sequence[Start] = EXAMPLE, step: int = 1) -> Path:
    """Write the files of a run, with every `step`th iteration; returns its checkpoint directory."""
    save.mkdir(parents=True, exist_ok=True)
    clock = _Clock()
    with ExitStack() as patches:
        for module in (reporter, run_journal):
            patches.enter_context(mock.patch.object(module, "time", clock))
        CheckpointLease(save, "incarnation", UID).acquire()
        journal = run_journal.RunJournal(save, log=lambda _text: None)
        lines = reporter.ProgressFile(save / PROGRESS_FILE)
        for generation, start in enumerate(starts, 1):
            report = None
            if start.kind is not None:
                clock.now += start.detect
                cause = start.cause
                report = FailureReport(start.kind, cause, start.node, start.rank, detected_at=clock.now)
            clock.now += 25.0
            resumed = start.first - 1 or None
            if start.kind is FailureKind.HANG:
                write_hang(save, generation - 1, start.rank or 0, iteration=starts[generation - 2].last)
            journal.start_generation(generation, report, resumed, latest=None, met_at=clock.now)
            clock.now += 12.0
            journal.record_loaded(generation, clock.now)
            for iteration in range(start.first, start.last + 1, step):
                clock.now += STEP_SECONDS * step
                append_iteration(lines, iteration, generation)
            journal.update(None)
    for iteration in range(SAVE_INTERVAL, starts[-1].last + 1, SAVE_INTERVAL):
        write_checkpoint(save, iteration)
    return save


def write_hang(save: Path, generation: int, stalled: int, iteration: int) -> Path:
    """Write the stacks of a hang as two pods with two ranks each do; the rank `stalled` is stopped."""
    folder = save / HANGS_FOLDER / f"20260101T180255Z-generation-{generation}"
    folder.mkdir(parents=True)
    frames = [
        line
        for line in Path(__file__).with_name("example_hang.txt").read_text().splitlines()
        if "File" in line
    ]
    thread = 'Thread 0x00007f1c (most recent call first):\n  File "threading.py", line 359 in wait'
    waits = "\n".join((MAIN_THREAD, *frames, "", thread))
    for node in (0, 1):
        ranks = [
            RankState(
                rank, node, 41 + rank, iteration, "training",
                "stopped" if rank == stalled else "running", "", rank != stalled,
                answered=rank != stalled, stacks="" if rank == stalled else waits,
            )
            for rank in (2 * node, 2 * node + 1)
        ]  # fmt: skip
        (folder / f"node-{node}.txt").write_text("\n".join(rank.text() for rank in ranks))
    return folder


def append_iteration(lines: reporter.ProgressFile, iteration: int, generation: int) -> None:
    """Append a line with the fields that a rank writes."""
    wave = 0.06 * math.sin(iteration * 1.7) + 0.04 * math.sin(iteration * 0.61)
    lines.append(
        {
            "iteration": iteration,
            "lmLoss": 2.1 + 8.5 * math.exp(-iteration / 400) + wave,
            "learningRate": 3e-4 * min(1.0, iteration / 500),
            "tokens": TOKENS,
            "stepSeconds": STEP_SECONDS + wave,
            "generation": generation,
        }
    )


def write_checkpoint(save: Path, iteration: int) -> Path:
    """Write a checkpoint without shards that the trainer would take for complete."""
    path = selection.directory(save, iteration)
    path.mkdir()
    (path / ".metadata").write_bytes(pickle.dumps(SimpleNamespace(storage_data={})))
    (path / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist"}))
    (save / selection.TRACKER).write_text(str(iteration))
    return path
