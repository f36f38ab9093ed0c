"""Which models of the catalog are estimated, as docs/planner.md states."""

from pathlib import Path

from megatron_operator import catalog
from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.catalog.bridge_support import obstacle
from megatron_operator.planner.estimate.model_shape import model_shape

PAGE = Path(__file__).parents[3] / "docs" / "planner.md"


def test_the_page_has_the_number_of_estimated_recipes() -> None:
    entries = list(catalog.load())
    estimated = [entry for entry in entries if model_shape(entry.model, Diagnostics())]
    assert f"{len(estimated)} of the catalog's {len(entries)} recipes are estimated" in PAGE.read_text()


def test_every_model_that_the_operator_starts_is_estimated() -> None:
    for entry in catalog.load():
        if model_shape(entry.model, Diagnostics()) is None:
            assert entry.engine == "bridge"
            functions = [str(layout.function) for layout in entry.layouts]
            assert functions
            assert all(obstacle(name, mode) for name in functions for mode in entry.modes), entry.name
