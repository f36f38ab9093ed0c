"""How far a check of data is, which reads files and builds nothing."""

import time
from datetime import UTC, datetime

from megatron_contract.progress import PROGRESS_SCHEMA, PreparationProgress, ProgressReport

from megatron_trainer.data.log import log
from megatron_trainer.telemetry.server import ProgressServer

_LOG_SECONDS = 30.0


class CheckMeter:
    """Counts what has been read of `total` bytes. `report` may be called by another thread."""

    def __init__(self) -> None:
        """Begin with nothing to read."""
        self._total = self._done = 0
        self._done_to_them = "checked"
        self._started = self._logged = time.monotonic()

    def begin(self, total: int, done_to_them: str = "checked") -> None:
        """Begin to read `total` bytes, of which the log reports what is done to them."""
        self._total, self._done, self._done_to_them = total, 0, done_to_them
        self._started = time.monotonic()

    def step(self, bytes_read: int) -> None:
        """Count bytes that have been read."""
        self._done += bytes_read
        if (now := time.monotonic()) - self._logged > _LOG_SECONDS:
            self._logged = now
            log(f"{self._done >> 20:,} of {self._total >> 20:,} MiB are {self._done_to_them}")

    def report(self) -> ProgressReport:
        """Return the answer to /progress."""
        elapsed = time.monotonic() - self._started
        rate = self._done / elapsed if self._done and elapsed > 0 else None
        left = (self._total - self._done) / rate if rate else None
        progress = PreparationProgress(0, self._done, self._total, rate, left, "check")
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return ProgressReport(PROGRESS_SCHEMA, "preparing", updated_at=now, preparation=progress)

    def serve(self, port: int) -> None:
        """Serve the progress at a port, without which the check goes on."""
        try:
            ProgressServer(port, self.report).start()
        except OSError as error:
            log(f"the progress is not served at port {port}: {error}")
