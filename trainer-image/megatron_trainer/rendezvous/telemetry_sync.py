"""What the pods tell each other while they train, through the gang's store.

The pod with the rank that knows the loss tells the iterations; node 0 keeps the book of the run and tells
what is in it. So every pod's /progress shows the whole run.
"""

import json
import time
from typing import Any

from megatron_trainer.rendezvous.handler import GangRendezvous
from megatron_trainer.telemetry.run_journal import Book
from megatron_trainer.telemetry.status import ITERATION_FIELDS, Status

_TURN_SECONDS = 0.5


class Sharing:
    """This pod's part in it. `book` is there on node 0 only."""

    def __init__(self, gang: GangRendezvous, status: Status, book: Book | None) -> None:
        self._gang = gang
        self._status = status
        self._book = book
        self._last_turn = 0.0
        self._said = ""
        self.told: dict[str, Any] = {}

    def turn(self) -> None:
        """Exchange, if it is time to. Raises StoreLost."""
        now = time.monotonic()
        if now - self._last_turn < _TURN_SECONDS:
            return
        self._last_turn = now
        self._iterations()
        if self._book is not None:
            self._tell(self._book)
        else:
            self._status.set_quietly(**json.loads(self._gang.store.get("run") or "{}"))

    def _iterations(self) -> None:
        if self._gang.node_rank == self._gang.nodes - 1:
            figures = self._status.figures()
            if figures["time"] is not None and figures != self.told:
                self.told = figures
                self._gang.store.set("progress", json.dumps(figures))
        else:
            record = json.loads(self._gang.store.get("progress") or "{}")
            if record.get("generation") == self._gang.generation and record != self.told:
                self.told = record
                self._status.learn({name: record.get(name) for name in ("time", *ITERATION_FIELDS)})

    def _tell(self, book: Book) -> None:
        loaded_at = self._status.loaded_at
        if loaded_at is not None:
            book.loaded(self._gang.generation, loaded_at)
        book.follow(self.told)
        run = book.public() | {"warnings": self._status.get("warnings")}
        self._status.set_quietly(**run)
        text = json.dumps(run)
        if text != self._said:
            self._gang.store.set("run", text)
            self._said = text
