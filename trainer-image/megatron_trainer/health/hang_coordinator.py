"""What the pods do together when ranks hang: agree on it, keep all stacks, name the rank that is behind.

Every launcher watches its own ranks and says in the gang's store when all of them are silent. When all pods
say so, node 0 asks for stacks; each launcher takes those of its ranks, and node 0 reports whom they wait for.
"""

import json
import shutil
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from megatron_trainer.health.stacks import RankState, behind, describe
from megatron_trainer.health.watchdog import Watchdog
from megatron_trainer.rendezvous.handler import GangRendezvous
from megatron_trainer.rendezvous.state import State
from megatron_trainer.telemetry.incidents import Kind, Report

HANGS_FOLDER = "hangs"
HANGS_KEPT = 3
_LOOK_SECONDS = 0.5
_ANSWER_SECONDS = 10.0
_WRITE_SECONDS = 5.0


class HangHunt:
    """This pod's part in it. `look` takes the state and the stacks of this pod's ranks."""

    def __init__(
        self,
        gang: GangRendezvous,
        watchdog: Watchdog,
        save: Path | None,
        look: Callable[[], list[RankState]],
        log: Callable[[str], None],
    ) -> None:
        self._gang = gang
        self._watchdog = watchdog
        self._save = save
        self._look = look
        self._log = log
        self._looked_at = 0.0
        self._said: tuple[int, bool] = (0, False)
        self._answered = 0
        self._report: Report | None = None
        self._silent = 0.0
        self._give_up_at = 0.0

    def turn(self, state: State) -> Report | None:
        """Look, and answer. On node 0: the report of a hang once it is known whom it is due to.

        Raises StoreLost.
        """
        if state.hang is not None:
            return self._answer(state, state.hang)
        now = time.monotonic()
        if now - self._looked_at < _LOOK_SECONDS:
            return None
        self._looked_at = now
        stalled = (state.generation, self._watchdog.stalled())
        if stalled[1] or self._said[0] == state.generation:
            self._say(stalled)
        if stalled[1] and self._gang.node_rank == 0 and self._all_stalled(state.generation):
            stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
            self._gang.store.found_hanging(
                state.generation, f"{HANGS_FOLDER}/{stamp}-generation-{state.generation}"
            )
        return None

    def _say(self, stalled: tuple[int, bool]) -> None:
        if stalled != self._said:
            self._gang.store.set(f"stalled/{stalled[0]}/{self._gang.node_rank}", str(stalled[1]))
            self._said = stalled

    def _all_stalled(self, generation: int) -> bool:
        return all(
            self._gang.store.get(f"stalled/{generation}/{node}") == "True" for node in range(self._gang.nodes)
        )

    def _answer(self, state: State, folder: str) -> Report | None:
        key = f"stacks/{state.generation}"
        if self._answered != state.generation:
            self._answered = state.generation
            self._silent = self._watchdog.silence()
            self._report = Report(Kind.HANG, "", 0)
            found = self._look()
            self._gang.store.set(
                f"{key}/{self._gang.node_rank}", json.dumps([each.brief() for each in found])
            )
            self._keep(found, folder)
            self._give_up_at = time.monotonic() + _ANSWER_SECONDS
        keys = [f"{key}/{node}" for node in range(self._gang.nodes)]
        waiting = time.monotonic() < self._give_up_at and not self._gang.store.has(keys)
        if self._gang.node_rank != 0 or self._report is None or waiting:
            return None
        texts = (self._gang.store.get(each) for each in keys)
        states = [RankState(**brief) for text in texts if text for brief in json.loads(text)]
        culprit = behind(states)
        kept = None if self._save is None else self._save / folder
        report = Report(
            Kind.HANG,
            describe(culprit, self._silent, kept),
            0 if culprit is None else culprit.node_rank,
            None if culprit is None else culprit.rank,
            detected_at=self._report.detected_at,
        )
        self._report = None
        return report

    def _keep(self, found: list[RankState], folder: str) -> None:
        """Write the stacks down, on a thread: the volume may be what the ranks hang on."""
        text = "\n".join(each.text() for each in found)
        if self._save is None:
            self._log(f"stacks of ranks that hang:\n{text}")
            return
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
            self._log(f"cannot keep the stacks in {folder}: {error}")
