"""Refusals: what cannot run here, what belongs to another checkout, what does not exist."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from localcluster import Cluster, cli, cluster, machine_lock, requirements
from localcluster.errors import ClusterError
from localcluster.leak_check import NONE
from localcluster.paths import Layout


@pytest.fixture
def no_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_lock, "PATH", tmp_path / "claim.json")


@pytest.mark.usefixtures("no_claim")
def test_a_second_checkout_is_told_how_to_stop_the_first() -> None:
    machine_lock.take(Path("/first"))
    with pytest.raises(ClusterError, match="cd /first && python -m localcluster down"):
        machine_lock.take(Path("/second"))


@pytest.mark.usefixtures("no_claim")
def test_the_same_checkout_may_claim_again_and_release() -> None:
    machine_lock.take(Path("/first"))
    machine_lock.take(Path("/first"))
    machine_lock.release(Path("/second"))
    assert machine_lock.current() is not None
    machine_lock.release(Path("/first"))
    machine_lock.take(Path("/second"))


@pytest.mark.usefixtures("no_claim")
def test_a_claim_of_an_earlier_boot_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_lock.take(Path("/first"))
    monkeypatch.setattr(machine_lock, "boot_id", lambda: "another boot")
    machine_lock.take(Path("/second"))


@pytest.mark.usefixtures("no_claim")
def test_all_that_is_missing_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(requirements.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(requirements.cgroups, "missing_controllers", lambda: ["memory"])
    assert cli.main(["up"]) == cli.CANNOT_RUN_HERE
    told = capsys.readouterr().err
    assert "- root:" in told
    assert "- cgroup controllers memory" in told


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
    requirements.check(Layout("control-plane"))


@pytest.mark.parametrize(("free", "missing"), [(26, None), (25, "26 GiB of disk below {}, 25 are free")])
def test_no_more_disk_is_asked_for_than_the_cluster_fills(
    free: int, missing: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=free << 30)
    monkeypatch.setattr(requirements.shutil, "disk_usage", lambda _: usage)
    told = requirements.missing_disk(Layout("full", tmp_path))
    assert told == (missing and missing.format(tmp_path))


@pytest.mark.parametrize("folder", requirements.HIDDEN)
def test_a_checkout_that_nodes_could_not_see_is_known(folder: str) -> None:
    assert requirements.hidden_by(Path(folder) / "megatron-operator") == folder
    assert requirements.hidden_by(Path("/home/me") / "megatron-operator") is None


@pytest.mark.parametrize(("text", "expected"), [("go1.26.8", (1, 26)), ("go1.27rc1", (1, 27))])
def test_go_versions(text: str, expected: tuple[int, int]) -> None:
    assert requirements.parse_go_version(text) == expected


def test_an_odd_go_version_is_shown() -> None:
    with pytest.raises(ClusterError, match="devel"):
        requirements.parse_go_version("devel +abc")


def test_an_unknown_profile_is_answered_with_the_known() -> None:
    with pytest.raises(ClusterError, match="one of: full, control-plane"):
        Cluster("kind")


def test_an_unknown_node_is_answered_with_the_known() -> None:
    with pytest.raises(ClusterError, match="one of: node-0, node-1"):
        Cluster("full").node_stop("node-2")


def test_the_control_plane_has_no_nodes_to_stop() -> None:
    with pytest.raises(ClusterError, match="no nodes of its own"):
        Cluster("control-plane").node_stop("node-0")


def test_an_unknown_component_is_answered_with_the_known() -> None:
    with pytest.raises(ClusterError, match="one of: etcd, kube-apiserver"):
        Cluster("full").component_stop("kubelet")


def test_traces_tell_what_is_new_and_nothing_else() -> None:
    before = replace(NONE, mounts=frozenset({"/proc proc"}), links=frozenset({"lo"}))
    after = replace(before, links=frozenset({"lo", "megatron0"}), mounts=frozenset())
    assert after.since(before) == ["links: megatron0"]
