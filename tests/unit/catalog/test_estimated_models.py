"""Which models of the catalog are estimated, as docs/planner.md states."""

from pathlib import Path

import pytest
from megatron_operator import catalog
from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.catalog import Entry
from megatron_operator.planner.estimate.model_shape import model_shape
from pydantic import ValidationError

PAGE = Path(__file__).parents[3] / "docs" / "planner.md"


def test_the_page_has_the_number_of_estimated_recipes() -> None:
    entries = list(catalog.load())
    estimated = [entry for entry in entries if model_shape(entry.model, Diagnostics())]
    assert f"{len(estimated)} of the catalog's {len(entries)} recipes are estimated" in PAGE.read_text()


def test_the_one_recipe_without_an_estimate_states_why_and_takes_its_sizes() -> None:
    [without] = [entry for entry in catalog.load() if model_shape(entry.model, Diagnostics()) is None]
    assert without.model.not_estimated
    assert without.leaves_sizes_open
    assert f"`{without.name}` alone has no estimate" in PAGE.read_text()


def test_a_pattern_has_as_many_layers_as_its_model() -> None:
    shapes = [model_shape(entry.model, Diagnostics()) for entry in catalog.load()]
    assert [shape for shape in shapes if shape and len(shape.kinds) != shape.layers] == []


def test_sizes_that_megatrons_own_loop_does_not_build_need_engine_bridge() -> None:
    own = {"engine": "megatron", "family": "x", "name": "x", "description": "x", "source": "x"}
    with pytest.raises(ValidationError, match=r"model.hybridLayerPattern needs engine bridge"):
        Entry.model_validate({**own, "model": {"hybridLayerPattern": "M*-"}})
