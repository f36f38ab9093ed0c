"""The book of the run, kept by node 0: when it began, what interrupted it, how much time was useful.

It lies beside the checkpoints, so that it outlives the pod that keeps it. Without a checkpoint directory it
is kept in memory.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from megatron_contract.environment import PROGRESS_FILE

from megatron_trainer.telemetry.incidents import Report, incident
from megatron_trainer.telemetry.progress_log import Ledger

BOOK_FILE = "incidents.json"
INCIDENTS_KEPT = 8


class Book:
    """What node 0 knows of the run's whole life. Times are unix seconds."""

    def __init__(self, save: Path | None, log: Callable[[str], None]) -> None:
        self._path = None if save is None else save / BOOK_FILE
        self._log = log
        self._ledger = Ledger(None if save is None else save / PROGRESS_FILE)
        self._opened_at = time.time()
        self._fields: dict[str, Any] = {
            "schema": 1,
            "firstStartedAt": None,
            "generation": 0,
            "pending": None,
            "incidents": [],
            "policy": {},
        }
        self._fields |= self._read()
        self._ledger.follow()
        if self._fields["firstStartedAt"] is None:
            self._fields["firstStartedAt"] = self._ledger.begun_at or self._opened_at
        last = self._ledger.last
        if last is not None:
            self._fields["generation"] = max(self._fields["generation"], last["generation"])

    def _read(self) -> dict[str, Any]:
        try:
            value = json.loads(self._path.read_text()) if self._path else {}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            self._log(f"{self._path} cannot be read, its incidents are forgotten: {error}")
            return {}
        return {key: value[key] for key in self._fields if key in value} if isinstance(value, dict) else {}

    def write(self) -> None:
        """Replace the file in one step. A volume that is full does not stop the run for it."""
        if self._path is None:
            return
        temporary = self._path.with_name(f".{BOOK_FILE}.{os.getpid()}")
        try:
            temporary.write_text(json.dumps(self._fields))
            temporary.replace(self._path)
        except OSError as error:
            self._log(f"cannot write {self._path}: {error}")

    @property
    def generation(self) -> int:
        """The last generation that began, 0 before the first: the count goes on when all pods are new."""
        return int(self._fields["generation"])

    @property
    def policy(self) -> dict[str, Any]:
        """What the loss policy remembers; written with the rest."""
        return self._fields["policy"]  # type: ignore[no-any-return]

    def last_words(self, report: Report) -> None:
        """This pod ends because of `report`: its replacement, which finds no store, begins with it."""
        self._fields["pending"] = report.to_json()
        self.write()

    def inherited(self) -> Report | None:
        """What the last keeper of the book ended with."""
        pending = self._fields["pending"]
        return None if pending is None else Report.from_json(pending)

    @property
    def iteration(self) -> int | None:
        """The last iteration that was done, by whichever generation."""
        self._ledger.follow()
        return None if self._ledger.last is None else int(self._ledger.last["iteration"])

    def begin(
        self,
        generation: int,
        report: Report | None,
        resumed_from: int | None,
        told: dict[str, Any],
        met_at: float,
    ) -> None:
        """A generation begins, because of `report`. All ranks are stopped, all pods have met.

        `told`: the last iteration as the gang's store has it, for a run without a progress file.
        """
        self._ledger.follow()
        last = self._ledger.last or (told if told.get("time") else None)
        incidents = self._fields["incidents"]
        if report is not None:
            # A generation that did no step has none to measure from: the time since is the incident's before.
            idle = bool(incidents) and incidents[-1]["firstStepAt"] is None
            incidents.append(
                incident(
                    generation=generation,
                    report=report,
                    iteration=None if last is None else last["iteration"],
                    last_step_at=None if last is None or idle else last["time"],
                    resumed_from=resumed_from,
                    met_at=met_at,
                )
            )
            del incidents[:-INCIDENTS_KEPT]
        self._ledger.rewind(resumed_from or 0)
        self._fields["generation"] = generation
        self._fields["pending"] = None
        self.write()

    def loaded(self, generation: int, at: float) -> None:
        """A rank here has loaded its part of the checkpoint; the last one counts."""
        incidents = self._fields["incidents"]
        if incidents and incidents[-1]["generation"] == generation and incidents[-1]["firstStepAt"] is None:
            incidents[-1]["loadedAt"] = max(at, incidents[-1]["loadedAt"] or at)

    def follow(self, told: dict[str, Any]) -> None:
        """Take in the iterations that were done since; `told` as for `begin`."""
        records = self._ledger.follow()
        if self._path is None and told.get("time"):
            records = [told]
        if sum(self._step(record) for record in records):
            self.write()

    def _step(self, record: dict[str, Any]) -> bool:
        incidents = self._fields["incidents"]
        if not incidents or record["generation"] != incidents[-1]["generation"]:
            return False
        newest, changed = incidents[-1], False
        if newest["firstStepAt"] is None:
            newest["firstStepAt"], changed = record["time"], True
        if newest["caughtUpAt"] is None and record["iteration"] > (newest["iteration"] or 0):
            newest["caughtUpAt"], changed = record["time"], True
        return changed

    def public(self) -> dict[str, Any]:
        """The fields of /progress that come from here."""
        return {
            "incidents": [dict(each) for each in self._fields["incidents"]],
            "usefulSeconds": round(self._ledger.useful_seconds, 3),
            "firstStartedAt": self._fields["firstStartedAt"],
        }
