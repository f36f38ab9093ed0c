"""Layouts, node discovery and the planner use the same accelerator names."""

from megatron_operator import catalog
from megatron_operator.catalog import bridge_tables, discovery
from megatron_operator.planner.estimate import hardware


def names_of_the_planner() -> set[str]:
    return {each.name for each in hardware.table().values() if each is not None} | {"cpu"}


def test_accelerators_of_published_layouts_are_in_the_planners_table() -> None:
    named = {name for entry in catalog.load() for layout in entry.layouts for name in layout.accelerators}
    assert named <= names_of_the_planner() | bridge_tables.WITHOUT_DATA_SHEET


def test_discovered_nodes_have_the_names_of_the_layouts() -> None:
    named = {*discovery.PRODUCTS.values(), *(name for name, _ in discovery.INSTANCE_TYPES.values())}
    assert named <= names_of_the_planner()
