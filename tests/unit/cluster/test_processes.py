"""Only processes that the cluster started are killed, even where a PID was reused."""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from localcluster.errors import ClusterError
from localcluster.processes import OWNER_VARIABLE, Processes, owned_pids, start_time, wait_until

SLEEP = ["sleep", "600"]


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    result = Processes(tmp_path / "home")
    yield result
    result.kill_all()


def test_start_and_kill(processes: Processes) -> None:
    pid = processes.start("sleeper", SLEEP)
    assert processes.running("sleeper")
    processes.kill("sleeper")
    assert start_time(pid) is None
    assert processes.names() == []


def test_a_running_process_is_not_started_again(processes: Processes) -> None:
    assert processes.start("sleeper", SLEEP) == processes.start("sleeper", SLEEP)


def test_another_command_finds_the_process(processes: Processes) -> None:
    processes.start("sleeper", SLEEP)
    assert Processes(processes.home).running("sleeper")


@pytest.mark.parametrize("changed", [{"start_time": 1}, {"boot": "another"}])
def test_a_reused_pid_is_not_killed(processes: Processes, changed: dict[str, object]) -> None:
    foreign = subprocess.Popen(SLEEP)
    try:
        own = processes.start("sleeper", SLEEP)
        record = processes.record("sleeper")
        assert record is not None
        stale = replace(record, name="stale", pid=foreign.pid, **changed)
        (processes.records / "stale.json").write_text(json.dumps(asdict(stale)))
        assert not processes.running("stale")
        processes.kill("stale")
        processes.kill_all()
        assert start_time(own) is None
        assert foreign.poll() is None
    finally:
        foreign.kill()
        foreign.wait()


def test_an_unrecorded_process_is_found_by_its_mark(processes: Processes) -> None:
    unrecorded = subprocess.Popen(SLEEP, env={**os.environ, OWNER_VARIABLE: str(processes.home)})
    wait_until(lambda: owned_pids(processes.home) == [unrecorded.pid], 10, "the mark to show")
    processes.kill_all()
    assert unrecorded.wait(timeout=10) < 0


def test_a_damaged_record_is_no_process(processes: Processes) -> None:
    processes.records.mkdir(parents=True)
    (processes.records / "half.json").write_text('{"name": "ha')
    assert not processes.running("half")
    processes.kill_all()
    assert processes.names() == []


def test_a_missing_program_is_named(processes: Processes) -> None:
    with pytest.raises(ClusterError, match="cannot start /nowhere/etcd"):
        processes.start("etcd", ["/nowhere/etcd"])


def test_a_process_does_not_inherit_proxies(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    pid = processes.start("sleeper", SLEEP)
    assert b"proxy.example" not in Path(f"/proc/{pid}/environ").read_bytes()


def test_a_wait_ends_with_the_process() -> None:
    with pytest.raises(ClusterError, match="API server ready: the process ended"):
        wait_until(lambda: False, 60, "API server ready", alive=lambda: False)
