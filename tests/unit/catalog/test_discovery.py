"""Node labels fill in what the platform file leaves out, and never override it."""

import pytest
from megatron_operator import catalog
from megatron_operator.api.platform import AcceleratorProfile, PlatformConfig
from megatron_operator.catalog.discovery import INSTANCE_TYPES, PRODUCTS, with_nodes
from megatron_operator.lifecycle.desired import (
    Config,
    can_continue_with,
    desired_state,
    planning_input,
)
from megatron_operator.lifecycle.elastic import possible_counts
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.planner.estimate import hardware

H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8"}


def test_a_labelled_node_becomes_a_profile_with_the_planners_name() -> None:
    found = with_nodes(PlatformConfig(), [H100, H100]).accelerators
    assert set(found) == {"h100-sxm"}
    assert found["h100-sxm"].per_node == 8
    assert found["h100-sxm"].node_labels == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}


def test_the_instance_type_identifies_the_accelerator_without_a_product_label() -> None:
    found = with_nodes(PlatformConfig(), [{"node.kubernetes.io/instance-type": "p5en.48xlarge"}]).accelerators
    assert found["h200"].node_labels == {"node.kubernetes.io/instance-type": "p5en.48xlarge"}


def test_a_node_that_is_not_labelled_yet_takes_no_label_and_no_topology_key_from_the_others() -> None:
    instance = {"node.kubernetes.io/instance-type": "p5.48xlarge"}
    labelled = {**H100, **instance, "nvidia.com/gpu.clique": "c1.1", "topology.kubernetes.io/zone": "a"}
    new = {**instance, "topology.kubernetes.io/zone": "a"}
    alone = with_nodes(PlatformConfig(), [labelled])
    assert alone.accelerators["h100-sxm"].topology == ["nvidia.com/gpu.clique", "topology.kubernetes.io/zone"]
    assert with_nodes(PlatformConfig(), [new, labelled]) == alone
    other = with_nodes(PlatformConfig(), [H100, new]).accelerators["h100-sxm"]
    assert other.node_labels == {}, "the labelled nodes may be of another kind"


def test_the_platform_file_takes_precedence() -> None:
    configured = AcceleratorProfile(per_node=4, node_labels={"pool": "training"}, topology=["rack"])
    platform = PlatformConfig(accelerators={"h100-sxm": configured})
    assert with_nodes(platform, [{**H100, "topology.kubernetes.io/zone": "a"}]) == platform


def test_a_profile_without_labels_gets_those_of_its_hardware() -> None:
    platform = PlatformConfig(accelerators={"big": AcceleratorProfile(hardware="h100-sxm")})
    found = with_nodes(platform, [H100]).accelerators
    assert set(found) == {"big"}
    assert found["big"].node_labels == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}


def test_a_topology_key_counts_only_when_every_node_has_it() -> None:
    near = {**H100, "topology.k8s.aws/network-node-layer-3": "n1", "topology.kubernetes.io/zone": "a"}
    far = {**H100, "topology.kubernetes.io/zone": "a"}
    assert with_nodes(PlatformConfig(), [near, far]).accelerators["h100-sxm"].topology == [
        "topology.kubernetes.io/zone"
    ]


@pytest.mark.parametrize("counts", ["887", "878", "87"])
@pytest.mark.parametrize(
    "file", [{}, {"h100-sxm": AcceleratorProfile(topology=["rack"])}], ids=["none", "profile"]
)
def test_a_node_that_has_lost_an_accelerator_does_not_change_the_size_of_the_others(
    counts: str, file: dict[str, AcceleratorProfile]
) -> None:
    nodes = [{**H100, "nvidia.com/gpu.count": count} for count in counts]
    assert with_nodes(PlatformConfig(accelerators=file), nodes).accelerators["h100-sxm"].per_node == 8


def test_an_elastic_run_of_two_nodes_shrinks_when_one_comes_back_with_an_accelerator_less() -> None:
    def config(*counts: str) -> Config:
        nodes = [{**H100, "nvidia.com/gpu.count": count} for count in counts]
        return Config(with_nodes(PlatformConfig(image="trainer"), nodes), catalog.load())

    spec = {
        "recipe": "llama3-8b",
        "accelerator": {"type": "h100-sxm", "count": 16},
        "data": {"mockData": True},
        "recovery": {"elastic": {"minCount": 8}},
    }
    metadata = {"name": "run", "namespace": "research", "uid": "run", "generation": 1}
    status = StatusBuilder.of({"metadata": metadata, "spec": spec}, 0.0)
    status.set(plan=desired_state(status, config("8", "8", "8")).plan)
    damaged = config("8", "8", "7")
    (smaller,) = possible_counts(8, requested=16, min_count=8, per_node=8)
    assert smaller == 8
    assert can_continue_with(status, desired_state(planning_input(status), damaged, smaller))


def test_simulated_gpus_are_not_an_accelerator() -> None:
    assert with_nodes(PlatformConfig(), [{"nvidia.com/gpu.product": "SIMULATED-ON-CPU"}]) == PlatformConfig()


@pytest.mark.parametrize("name", sorted({*PRODUCTS.values(), *(name for name, _ in INSTANCE_TYPES.values())}))
def test_every_discovered_name_is_in_the_planners_table(name: str) -> None:
    assert hardware.get(name) is not None
