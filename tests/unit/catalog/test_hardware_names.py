"""Layouts, node discovery and the planner use the same accelerator names."""

import pytest
from megatron_operator import catalog
from megatron_operator.api.errors import FieldError
from megatron_operator.api.recipe import AcceleratorSpec
from megatron_operator.catalog import bridge_tables, discovery
from megatron_operator.catalog.accelerator import select_accelerator
from megatron_operator.cli.default_platform import default_platform
from megatron_operator.planner.estimate import hardware


def names_of_the_planner() -> set[str]:
    return {each.name for each in hardware.table().values() if each is not None} | {"cpu"}


def test_accelerators_of_published_layouts_are_in_the_planners_table() -> None:
    named = {name for entry in catalog.load() for layout in entry.layouts for name in layout.accelerators}
    assert named <= names_of_the_planner() | bridge_tables.WITHOUT_DATA_SHEET


def test_discovered_nodes_have_the_names_of_the_layouts() -> None:
    named = {*discovery.PRODUCTS.values(), *(name for name, _ in discovery.INSTANCE_TYPES.values())}
    assert named <= names_of_the_planner()


@pytest.mark.parametrize(
    ("written", "name"),
    [
        *discovery.PRODUCTS.items(),
        ("H100", "h100-sxm"),
        ("h100-80gb", "h100-sxm"),
        ("h100-sxm5", "h100-sxm"),
        ("nvidia-h100", "h100-sxm"),
        ("A100-80GB", "a100-80"),
        ("nvidia-B200", "b200"),
    ],
)
def test_an_accelerator_is_found_by_the_names_that_people_and_nodes_have_for_it(
    written: str, name: str
) -> None:
    found = select_accelerator(AcceleratorSpec(type=written, count=8), default_platform())
    assert not isinstance(found, FieldError)
    assert found[0] == name


@pytest.mark.parametrize(
    ("written", "fix"),
    [
        ("A100", "did you mean a100-40 or a100-80? use one of: a100-40, "),
        ("h100sxm", "did you mean h100-sxm? use one of: a100-40, "),
        ("v100", "use one of: a100-40, "),
    ],
)
def test_a_name_that_several_or_no_accelerators_have_is_answered_with_the_similar_ones(
    written: str, fix: str
) -> None:
    found = select_accelerator(AcceleratorSpec(type=written, count=8), default_platform())
    assert isinstance(found, FieldError)
    assert found.fix.startswith(fix)
