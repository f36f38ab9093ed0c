"""The table of accelerators: complete, consistent, with sources."""

import pytest
from megatron_operator.api.platform import AcceleratorProfile
from megatron_operator.planner.estimate import hardware
from megatron_operator.planner.estimate.hardware import GIB, Accelerator

KNOWN = {name: each for name, each in hardware.table().items() if each is not None}


@pytest.mark.parametrize(
    "name",
    [
        "a100-40gb",
        "a100-80gb",
        "a100-sxm-80gb",
        "h100-sxm",
        "h100-pcie",
        "h100-nvl",
        "h200",
        "h200-sxm",
        "b200",
        "b300",
        "gb200-nvl72",
        "gb200",
        "gb300-nvl72",
        "gb300",
        "l40s",
        "a800",
        "h800",
        "h20",
        "rtx-pro-6000",
    ],
)
def test_every_name_that_recipes_use_is_known(name: str) -> None:
    assert hardware.get(name) is not None


@pytest.mark.parametrize("each", KNOWN.values(), ids=KNOWN)
def test_peaks_are_dense_and_fp8_is_twice_bf16(each: Accelerator) -> None:
    assert each.fp8 is None or each.fp8 == pytest.approx(2 * each.bf16, rel=0.02)


@pytest.mark.parametrize("each", KNOWN.values(), ids=KNOWN)
def test_every_entry_names_its_source(each: Accelerator) -> None:
    assert "data sheet" in each.source or "product brief" in each.source


@pytest.mark.parametrize("each", KNOWN.values(), ids=KNOWN)
def test_the_link_inside_a_domain_is_faster_than_the_network(each: Accelerator) -> None:
    assert each.link_bandwidth > each.network_bandwidth
    assert each.memory_bandwidth > each.link_bandwidth


def test_ampere_has_no_fp8() -> None:
    assert {name for name, each in KNOWN.items() if each.fp8 is None} == {
        name for name, each in KNOWN.items() if each.architecture == "ampere"
    }


def test_memory_is_what_the_driver_reports_not_the_name() -> None:
    h100 = hardware.get("h100-sxm")
    assert h100 is not None
    assert 79 * GIB < h100.memory < 80 * GIB


def test_a_rack_is_one_domain() -> None:
    rack, node = hardware.get("gb200-nvl72"), hardware.get("b200")
    assert rack is not None
    assert node is not None
    assert (rack.domain, node.domain) == (72, 8)


def test_a_cpu_has_no_entry() -> None:
    assert hardware.get("cpu") is None
    assert hardware.of_profile("cpu", AcceleratorProfile(platform="cpu")) is None


def test_a_profile_may_have_any_name() -> None:
    profile = AcceleratorProfile(hardware="h200")
    assert hardware.of_profile("our-big-ones", profile) == hardware.get("h200")
    assert hardware.of_profile("our-big-ones", AcceleratorProfile()) is None


SHEET = {
    "memoryGiB": 141.5,
    "bf16Teraflops": 1000,
    "memoryGBps": 4000,
    "linkGBps": 400,
    "domain": 8,
    "networkGBps": 12.5,
}


def profile_with(sheet: dict[str, object], **more: object) -> AcceleratorProfile:
    return AcceleratorProfile.model_validate({"dataSheet": sheet, **more})


def test_a_data_sheet_of_the_platform_takes_the_place_of_the_tables() -> None:
    known = hardware.of_profile("h100-sxm", profile_with(SHEET))
    unknown = hardware.of_profile("ours", profile_with(SHEET))
    assert known is not None
    assert unknown is not None
    assert known.name == "h100-sxm"
    assert (known.memory, known.bf16, known.fp8) == (int(141.5 * GIB), 1000e12, None)
    assert (known.memory_bandwidth, known.link_bandwidth, known.network_bandwidth) == (4e12, 4e11, 1.25e10)
    assert (known.domain, known.across_nodes) == (unknown.domain, unknown.across_nodes) == (8, False)


def test_a_data_sheet_without_an_architecture_leaves_the_generation_to_the_name() -> None:
    hopper = profile_with({**SHEET, "architecture": "hopper"})
    assert hardware.generation("b200-ours", hopper) is hardware.Generation.HOPPER
    assert hardware.generation("b200-ours", profile_with(SHEET)) is hardware.Generation.BLACKWELL
    assert hardware.generation("ours", profile_with(SHEET)) is None


def test_a_workstation_blackwell_is_not_taken_for_a_b200() -> None:
    assert hardware.generation("rtx-pro-6000", AcceleratorProfile()) is None


@pytest.mark.parametrize(
    ("name", "per_node", "domain"),
    [("h100-sxm", 4, 4), ("h100-sxm", 16, 8), ("h100-pcie", 8, 2), ("gb200", 4, 72)],
)
def test_a_link_connects_pods_only_where_it_connects_nodes(name: str, per_node: int, domain: int) -> None:
    found = hardware.of_profile(name, AcceleratorProfile(), per_node)
    assert found is not None
    assert found.domain == domain


def test_uplinks_of_racks_within_an_nvlink_domain_bound_what_leaves_it() -> None:
    """Two racks of 36 accelerators are one NVLink domain: no traffic within it uses their uplinks."""
    domains = {"a/rack": {"nodes": 9, "oversubscription": 2}, "a/block": {"nodes": 72, "oversubscription": 4}}
    described = {"perNode": 4, "topology": ["a/rack", "a/block"], "topologyDomains": domains}
    found = hardware.of_profile("gb200", AcceleratorProfile.model_validate(described))
    assert found is not None
    network = found.network_bandwidth
    assert found.levels == (
        hardware.TopologyLevel("a/rack", 72, network / 2),
        hardware.TopologyLevel("a/block", 288, network / 8),
    )
