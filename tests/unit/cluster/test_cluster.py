"""Errors: unmet requirements, a cluster of another checkout, unknown names."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from localcluster import Cluster, cli, cluster, machine_lock, requirements
from localcluster.errors import ClusterError
from localcluster.leak_check import EMPTY
from localcluster.paths import Paths
from localcluster.processes import Processes


@pytest.fixture
def free_machine_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_lock, "PATH", tmp_path / "lock.json")


@pytest.mark.usefixtures("free_machine_lock")
def test_a_second_checkout_learns_how_to_stop_the_first() -> None:
    machine_lock.acquire(Path("/first"))
    with pytest.raises(ClusterError, match="cd /first && python -m localcluster down"):
        machine_lock.acquire(Path("/second"))


@pytest.mark.usefixtures("free_machine_lock")
def test_the_same_checkout_may_acquire_the_lock_twice_and_release_it() -> None:
    machine_lock.acquire(Path("/first"))
    machine_lock.acquire(Path("/first"))
    machine_lock.release(Path("/second"))
    assert machine_lock.current_holder() is not None
    machine_lock.release(Path("/first"))
    machine_lock.acquire(Path("/second"))


@pytest.mark.usefixtures("free_machine_lock")
def test_a_lock_of_an_earlier_boot_is_void(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_lock.acquire(Path("/first"))
    monkeypatch.setattr(machine_lock, "boot_id", lambda: "another boot")
    machine_lock.acquire(Path("/second"))


def write_lock_of_an_ended_command(checkout: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from localcluster import machine_lock; "
        "machine_lock.PATH = Path(sys.argv[1]); machine_lock.acquire(Path(sys.argv[2]))"
    )
    command = [sys.executable, "-c", script, machine_lock.PATH, checkout]
    subprocess.run(command, check=True)


@pytest.mark.usefixtures("free_machine_lock")
def test_a_lock_is_void_once_every_process_of_its_cluster_was_killed(tmp_path: Path) -> None:
    first = tmp_path / "first"
    write_lock_of_an_ended_command(first)
    processes = Processes(Paths("full", first).home)
    processes.start("etcd", ["sleep", "60"])
    try:
        with pytest.raises(ClusterError, match=f"the checkout {first} runs the full cluster"):
            machine_lock.acquire(tmp_path / "second")
    finally:
        processes.kill_all()
    machine_lock.acquire(tmp_path / "second")
    assert machine_lock.is_held_by(tmp_path / "second")


@pytest.mark.usefixtures("free_machine_lock")
def test_all_unmet_requirements_are_reported_together(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(requirements.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(requirements.cgroups, "missing_controllers", lambda: ["memory"])
    assert cli.main(["up"]) == cli.CANNOT_RUN_HERE
    output = capsys.readouterr().err
    assert "- root:" in output
    assert "- cgroup controllers memory" in output


def test_a_failure_is_one_line_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Cluster) -> None:
        raise ClusterError("etcd: cannot start")

    monkeypatch.setattr(cluster.Cluster, "up", fail)
    assert cli.main(["up"]) == cli.FAILED
    assert capsys.readouterr().err == "error: etcd: cannot start\n"


def test_the_control_plane_needs_no_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements.os, "geteuid", lambda: 1000)
    requirements.check(Paths("control-plane"))


@pytest.mark.parametrize(
    ("free", "missing"), [(26, None), (25, "26 GiB of disk space in {}; 25 GiB are free")]
)
def test_the_required_disk_space_is_what_the_cluster_fills(
    free: int, missing: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=free << 30)
    monkeypatch.setattr(requirements.shutil, "disk_usage", lambda _: usage)
    found = requirements.missing_disk(Paths("full", tmp_path))
    assert found == (missing and missing.format(tmp_path))


@pytest.mark.parametrize("folder", requirements.HIDDEN)
def test_a_checkout_that_nodes_cannot_see_is_detected(folder: str) -> None:
    assert requirements.hidden_by(Path(folder) / "megatron-operator") == folder
    assert requirements.hidden_by(Path("/home/me") / "megatron-operator") is None


@pytest.mark.parametrize(("text", "expected"), [("go1.26.8", (1, 26)), ("go1.27rc1", (1, 27))])
def test_go_versions(text: str, expected: tuple[int, int]) -> None:
    assert requirements.parse_go_version(text) == expected


def test_an_unparsable_go_version_is_shown() -> None:
    with pytest.raises(ClusterError, match="devel"):
        requirements.parse_go_version("devel +abc")


def test_an_unknown_profile_lists_the_known_ones() -> None:
    with pytest.raises(ClusterError, match="one of: full, control-plane"):
        Cluster("kind")


def test_an_unknown_node_lists_the_known_ones() -> None:
    with pytest.raises(ClusterError, match="one of: node-0, node-1"):
        Cluster("full").node_stop("node-2")


def test_the_control_plane_has_no_nodes_to_stop() -> None:
    with pytest.raises(ClusterError, match="has no nodes"):
        Cluster("control-plane").node_stop("node-0")


def test_an_unknown_component_lists_the_known_ones() -> None:
    with pytest.raises(ClusterError, match="one of: etcd, kube-apiserver"):
        Cluster("full").component_stop("kubelet")


def test_only_added_items_are_reported() -> None:
    before = replace(EMPTY, mounts=frozenset({"/proc proc"}), links=frozenset({"lo"}))
    after = replace(before, links=frozenset({"lo", "megatron0"}), mounts=frozenset())
    assert after.added_since(before) == ["links: megatron0"]
