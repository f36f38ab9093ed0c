"""Xids in the kernel log explain the death of a rank."""

import os
from pathlib import Path

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_contract.hardware import Evidence
from megatron_trainer.health.kernel_log import KernelLog
from megatron_trainer.termination import Ending

KILLED = Ending(ExitCode.WORKER_DIED, "rank 3 was killed by SIGABRT", 3)
XID = "4,77,123456,-;NVRM: Xid (PCI:0000:3b:00): {code}, pid=1, GPU has fallen off the bus.\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "kmsg"
    file.write_text(XID.format(code=79))
    return file


def log_line(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(line)


def test_an_xid_since_the_start_is_the_evidence_of_a_killed_rank(path: Path) -> None:
    log = KernelLog(path)
    log_line(path, XID.format(code=79))
    ending = log.explain(KILLED)
    assert ending.evidence == Evidence.DEVICE_LOST
    assert ending.message == (
        "rank 3 was killed by SIGABRT (NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.)"
    )
    assert log.explain(KILLED).evidence == Evidence.DEVICE_LOST, "also when the exits are classified again"


def test_an_xid_of_the_application_or_from_before_the_start_explains_nothing(path: Path) -> None:
    log = KernelLog(path)
    assert log.explain(KILLED) == KILLED
    log_line(path, XID.format(code=31))
    assert log.explain(KILLED) == KILLED


def test_a_lost_peer_is_not_explained_by_the_own_kernel_log(path: Path) -> None:
    log = KernelLog(path)
    log_line(path, XID.format(code=79))
    lost = Ending(ExitCode.PEER_LOST, "Connection closed by peer", 0)
    assert log.explain(lost) == lost


def test_an_xid_is_found_although_older_records_were_overwritten(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = KernelLog(path)
    log_line(path, XID.format(code=79))
    read, overwritten = os.read, [BrokenPipeError()]

    def read_record(file: int, size: int) -> bytes:
        if overwritten:
            raise overwritten.pop()
        return read(file, size)

    monkeypatch.setattr(os, "read", read_record)
    assert log.explain(KILLED).evidence == Evidence.DEVICE_LOST


def test_a_kernel_log_that_cannot_be_read_explains_nothing(tmp_path: Path) -> None:
    assert KernelLog(tmp_path / "absent").explain(KILLED) == KILLED
