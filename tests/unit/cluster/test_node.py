"""The configuration of a node."""

import ipaddress
import tomllib

import pytest
from localcluster import addresses
from localcluster.addresses import NODES
from localcluster.controlplane import SERVICE_RANGE, ControlPlane, Ports
from localcluster.kubectl import Kubectl
from localcluster.node import INIT, PAUSE_IMAGE, Node
from localcluster.paths import Paths
from localcluster.processes import Processes

LAYOUT = Paths("full")


@pytest.fixture
def nodes() -> list[Node]:
    plane = ControlPlane(LAYOUT, Processes(LAYOUT.home), addresses.HOST, Ports.preferred(6443))
    return [Node(address, plane, Kubectl(LAYOUT)) for address in NODES]


def test_two_nodes_share_no_folder_group_or_address(nodes: list[Node]) -> None:
    first, second = nodes
    assert first.home != second.home
    assert first.containerd_root != second.containerd_root
    assert first.kubelet_config()["cgroupRoot"] != second.kubelet_config()["cgroupRoot"]
    assert first.kubelet_config()["address"] != second.kubelet_config()["address"]


def test_ranges_do_not_overlap() -> None:
    ranges = [ipaddress.ip_network(text) for text in (addresses.HOST_RANGE, SERVICE_RANGE)]
    ranges += [ipaddress.ip_network(node.pods) for node in NODES]
    for index, one in enumerate(ranges):
        assert not any(one.overlaps(other) for other in ranges[index + 1 :]), one


def test_every_address_is_in_its_range() -> None:
    host_range = ipaddress.ip_network(addresses.HOST_RANGE)
    pod_range = ipaddress.ip_network(addresses.POD_RANGE)
    assert ipaddress.ip_address(addresses.HOST) in host_range
    for node in NODES:
        assert ipaddress.ip_address(node.address) in host_range
        assert ipaddress.ip_network(node.pods).subnet_of(pod_range)


def test_interface_names_fit_the_kernel() -> None:
    for node in NODES:
        assert len(node.host_link + "p") <= 15


def test_the_containerd_configuration_is_valid(nodes: list[Node]) -> None:
    settings = tomllib.loads(nodes[0].containerd_config())
    plugin = settings["plugins"]["io.containerd.grpc.v1.cri"]
    assert plugin["sandbox_image"] == PAUSE_IMAGE
    assert plugin["restrict_oom_score_adj"] is True
    assert plugin["containerd"]["discard_unpacked_layers"] is True


def test_the_kubelet_rejects_anonymous_requests(nodes: list[Node]) -> None:
    authentication = nodes[0].kubelet_config()["authentication"]
    assert isinstance(authentication, dict)
    assert authentication["anonymous"] == {"enabled": False}


def test_images_are_never_garbage_collected(nodes: list[Node]) -> None:
    assert nodes[0].kubelet_config()["imageGCHighThresholdPercent"] == 100


def test_the_init_script_gets_every_variable_it_reads() -> None:
    script = INIT.read_text()
    documented = script.split("From the environment:")[1].split("set -eu")[0]
    for name in ("NODE_ADDRESS", "NODE_PREFIX", "HOST_ADDRESS", "PEERS", "NODE_HOME", "NODE_LIB", "BIN"):
        assert name in documented
        assert f"${name}" in script or f"${{{name}" in script
