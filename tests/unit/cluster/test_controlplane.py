"""Ports and command lines of the control plane."""

import socket
from dataclasses import asdict
from pathlib import Path

import pytest
from localcluster.controlplane import (
    COMPONENTS,
    FAST_HEARTBEATS,
    STANDARD_HEARTBEATS,
    ControlPlane,
    Ports,
    choose_ports,
)
from localcluster.errors import ClusterError
from localcluster.kubectl import Kubectl
from localcluster.kwok import Kwok
from localcluster.paths import Paths
from localcluster.processes import Processes


@pytest.fixture
def plane(tmp_path: Path) -> ControlPlane:
    paths = Paths("control-plane", tmp_path)
    paths.home.mkdir(parents=True)
    return ControlPlane(paths, Processes(paths.home), "127.0.0.1", Ports.preferred(26400))


def test_a_block_with_a_used_port_is_skipped(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        base = taken.getsockname()[1]
        size = len(asdict(Ports.preferred(base)))
        ports = choose_ports(tmp_path / "ports.json", "127.0.0.1", range(base, base + 20 * size, size))
    assert ports.api > base


def test_ports_stay_the_same_while_the_cluster_exists(tmp_path: Path) -> None:
    remembered = tmp_path / "ports.json"
    first = choose_ports(remembered, "127.0.0.1", range(42000, 43000, 20))
    with socket.socket() as server:
        server.bind(("127.0.0.1", first.api))
        server.listen()
        assert choose_ports(remembered, "127.0.0.1", range(42000, 43000, 20)) == first


def test_the_error_without_free_ports_names_the_range(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="between 0 and 0"):
        choose_ports(tmp_path / "ports.json", "127.0.0.1", range(0))


def test_no_two_ports_are_the_same() -> None:
    ports = asdict(Ports.preferred(26400)).values()
    assert len(set(ports)) == len(ports)


@pytest.mark.parametrize("component", COMPONENTS)
def test_everything_listens_on_local_addresses(plane: ControlPlane, component: str) -> None:
    args = " ".join(map(str, plane.argv(component)))
    assert "0.0.0.0" not in args
    assert "127.0.0.1" in args


def test_an_unknown_component_lists_the_known_ones(plane: ControlPlane) -> None:
    with pytest.raises(ClusterError, match="one of: etcd, kube-apiserver"):
        plane.argv("kubelet")


def test_permissions_on_owner_references_are_enforced_as_on_openshift(plane: ControlPlane) -> None:
    [plugins] = [
        each for each in plane.argv("kube-apiserver") if str(each).startswith("--enable-admission-plugins=")
    ]
    assert "OwnerReferencesPermissionEnforcement" in str(plugins)


def test_requests_are_logged_only_where_a_policy_exists(plane: ControlPlane) -> None:
    assert "audit" not in " ".join(map(str, plane.argv("kube-apiserver")))
    plane.paths.audit_policy.write_text("{}")
    args = " ".join(map(str, plane.argv("kube-apiserver")))
    assert f"--audit-policy-file={plane.paths.audit_policy}" in args
    assert f"--audit-log-path={plane.paths.audit_log}" in args
    assert "--audit-log-maxsize=8192" in args


def test_kubelets_and_node_controller_have_the_same_heartbeats(plane: ControlPlane) -> None:
    for heartbeats in (FAST_HEARTBEATS, STANDARD_HEARTBEATS):
        plane.heartbeats = heartbeats
        kwok = " ".join(map(str, Kwok(plane, Kubectl(plane.paths)).argv()))
        assert f"--node-lease-duration-seconds={heartbeats.lease} " in kwok
        controllers = " ".join(map(str, plane.argv("kube-controller-manager")))
        assert f"--node-monitor-grace-period={heartbeats.grace}s " in controllers
