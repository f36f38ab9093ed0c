"""What node 0 shares of the run, over a real store on loopback."""

import os
import threading
from pathlib import Path

import pytest
from megatron_contract.environment import PROGRESS_FILE
from megatron_trainer.rendezvous import telemetry_sync
from megatron_trainer.rendezvous.telemetry_sync import TelemetrySync
from megatron_trainer.telemetry.peak_memory import PeakMemory
from megatron_trainer.telemetry.run_journal import RunJournal
from megatron_trainer.telemetry.status import Status
from megatron_trainer.telemetry.step_times import StepTimes

from testkit.ports import free_port
from tests.unit.trainer.rendezvous.test_handler import pod
from tests.unit.trainer.telemetry.test_run_journal import record, write


def sync(exchange: TelemetrySync) -> None:
    """Exchange once; fails if that does not return."""
    thread = threading.Thread(target=exchange.sync, args=(True,), daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


def test_a_volume_that_does_not_respond_does_not_keep_the_pods_from_exchanging_their_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang, status = pod(free_port(), 0, nodes=1), Status(0, 20)
    gang.next_rendezvous()
    exchange = TelemetrySync(gang, status, RunJournal(tmp_path, print), StepTimes(0), PeakMemory())
    write(tmp_path, record(1))
    sync(exchange)
    assert status.report.useful_seconds == 2.0

    progress, kept = tmp_path / PROGRESS_FILE, tmp_path / "kept"
    progress.rename(kept)
    os.mkfifo(progress)  # opening it returns once it is opened to write
    monkeypatch.setattr(telemetry_sync, "_READ_SECONDS", 0.0)
    for detail in ("1 GiB free", "1 MiB free"):
        status.warn("CheckpointVolumeLow", detail)
        sync(exchange)
        assert detail in (gang.store.get("run") or "")
    assert status.report.useful_seconds == 2.0

    progress.open("wb").close()
    assert exchange._reader is not None
    exchange._reader.join(60)
    kept.replace(progress)
    write(tmp_path, record(2))
    monkeypatch.undo()
    sync(exchange)
    assert status.report.useful_seconds == 4.0
