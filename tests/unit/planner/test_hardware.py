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
