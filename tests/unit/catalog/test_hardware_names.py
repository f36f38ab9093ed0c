"""Layouts, node discovery and the planner call an accelerator by one name."""

from megatron_operator import catalog
from megatron_operator.catalog import bridge_tables, discovery
from megatron_operator.planner.estimate import hardware


def names_of_the_planner() -> set[str]:
    return {each.name for each in hardware.table().values() if each is not None} | {"cpu"}


def test_published_layouts_name_accelerators_that_the_planner_knows() -> None:
    named = {name for entry in catalog.load() for layout in entry.layouts for name in layout.accelerators}
    assert named <= names_of_the_planner() | bridge_tables.WITHOUT_DATA_SHEET


def test_discovered_nodes_get_the_names_that_layouts_have() -> None:
    named = {*discovery.PRODUCTS.values(), *(name for name, _ in discovery.INSTANCE_TYPES.values())}
    assert named <= names_of_the_planner()
