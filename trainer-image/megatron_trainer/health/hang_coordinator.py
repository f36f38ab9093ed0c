"""How the pods handle a hang together: agree on it, store all stacks, identify the stalled rank.

Every launcher watches its own ranks and marks in the gang's store when all of them are silent. When all pods
are marked, node 0 requests stacks; each launcher collects those of its ranks, and node 0 reports the rank
that the others wait for.
"""

import json
import shutil
import threading
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from megatron_contract.environment import HANGS_FOLDER

from megatron_trainer.health.stack_summary import summarize_stacks
from megatron_trainer.health.stacks import RankState, describe_hang, find_stalled_rank
from megatron_trainer.health.watchdog import Watchdog
from megatron_trainer.rendezvous.handler import GangRendezvous
from megatron_trainer.rendezvous.state import State
from megatron_trainer.telemetry.incidents import FailureKind, FailureReport

HANGS_KEPT = 3
"""Number of hangs whose stacks are kept: the newest."""
_CHECK_SECONDS = 0.5
_ANSWER_SECONDS = 10.0
_WRITE_SECONDS = 5.0
_REPORT_SECONDS = 5.0


class HangCoordinator:
    """This pod's part. `collect` returns the states and stacks of this pod's ranks."""

    def __init__(
        self,
        gang: GangRendezvous,
        watchdog: Watchdog,
        save: Path | None,
        collect: Callable[[], list[RankState]],
        log: Callable[[str], None],
    ) -> None:
        self._gang = gang
        self._watchdog = watchdog
        self._save = save
        self._collect = collect
        self._log = log
        self._checked_at = 0.0
        self._marked: tuple[int, bool] = (0, False)
        self._answered = 0
        self._detected_at: float | None = None
        self._silent = 0.0
        self._answer_deadline = 0.0

    @property
    def is_reported_soon(self) -> bool:
        """Whether this pod has been asked for its stacks, and node 0 has time to report the hang."""
        due = self._answer_deadline + _REPORT_SECONDS
        return self._answered == self._gang.generation and time.monotonic() < due

    def poll(self, state: State) -> FailureReport | None:
        """Check this pod's ranks, or answer a request for stacks.

        Returns, on node 0, the report of a hang once all stacks are collected or overdue. Raises
        StoreLostError.
        """
        if state.hang is not None:
            return self._answer(state, state.hang)
        now = time.monotonic()
        if now - self._checked_at < _CHECK_SECONDS:
            return None
        self._checked_at = now
        stalled = (state.generation, self._watchdog.stalled())
        if stalled[1] or self._marked[0] == state.generation:
            self._mark(stalled)
        if stalled[1] and self._gang.node_rank == 0 and self._all_stalled(state.generation):
            stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
            self._gang.store.request_stacks(
                state.generation, f"{HANGS_FOLDER}/{stamp}-generation-{state.generation}"
            )
        return None

    def _mark(self, stalled: tuple[int, bool]) -> None:
        if stalled != self._marked:
            self._gang.store.set(f"stalled/{stalled[0]}/{self._gang.node_rank}", str(stalled[1]))
            self._marked = stalled

    def _all_stalled(self, generation: int) -> bool:
        marks = self._gang.store.children(f"stalled/{generation}").values()
        return list(marks).count("True") == self._gang.nodes

    def _answer(self, state: State, folder: str) -> FailureReport | None:
        key = f"stacks/{state.generation}"
        if self._answered != state.generation:
            self._answered = state.generation
            self._silent = self._watchdog.silent_seconds()
            self._detected_at = time.time()
            ranks = self._collect_if_possible()
            self._gang.store.set(
                f"{key}/{self._gang.node_rank}", json.dumps([rank.brief() for rank in ranks])
            )
            if ranks:
                self._store_stacks(ranks, folder)
            self._answer_deadline = time.monotonic() + _ANSWER_SECONDS
        answered = self._gang.store.reached(key, self._gang.nodes)
        waiting = time.monotonic() < self._answer_deadline and not answered
        if self._gang.node_rank != 0 or self._detected_at is None or waiting:
            return None
        report = self._report(key, folder, self._detected_at)
        self._detected_at = None
        return report

    def _collect_if_possible(self) -> list[RankState]:
        """Collect the stacks of this pod's ranks; none if that fails, since the hang must be reported."""
        try:
            return self._collect()
        except Exception:
            self._log(f"the stacks of hanging ranks cannot be collected:\n{traceback.format_exc()}")
            return []

    def _report(self, key: str, folder: str, detected_at: float) -> FailureReport:
        answers = sorted(self._gang.store.children(key).items(), key=lambda answer: int(answer[0]))
        ranks = [RankState.from_brief(brief) for _, text in answers for brief in json.loads(text)]
        stalled = find_stalled_rank(ranks)
        stored_in = None if self._save is None or not ranks else self._save / folder
        return FailureReport(
            FailureKind.HANG,
            describe_hang(stalled, self._silent, stored_in, ranks),
            None if stalled is None else stalled.node_rank,
            None if stalled is None else stalled.rank,
            detected_at=detected_at,
        )

    def _store_stacks(self, ranks: list[RankState], folder: str) -> None:
        """Log the main threads; write all stacks on a thread, since ranks may hang on the volume."""
        text = "\n".join(rank.text() for rank in ranks)
        if self._save is None:
            self._log(f"stacks of hanging ranks:\n{text}")
            return
        path = self._save / folder / f"node-{self._gang.node_rank}.txt"
        self._log(f"main threads of hanging ranks, all threads are in {path}:\n{summarize_stacks(ranks)}")
        writer = threading.Thread(target=self._write, args=(self._save / folder, text), daemon=True)
        writer.start()
        writer.join(_WRITE_SECONDS)

    def _write(self, folder: Path, text: str) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"node-{self._gang.node_rank}.txt").write_text(text)
            if self._gang.node_rank == 0:
                for old in sorted(folder.parent.iterdir())[:-HANGS_KEPT]:
                    shutil.rmtree(old, ignore_errors=True)
        except OSError as error:
            self._log(f"cannot write the stacks to {folder}: {error}")
