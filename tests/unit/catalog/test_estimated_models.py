"""Which models of the catalog are estimated, as docs/planner.md states."""

import re
from pathlib import Path

from megatron_operator import catalog
from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.planner.estimate.model_shape import model_shape

PAGE = Path(__file__).parents[3] / "docs" / "planner.md"


def test_the_page_has_the_number_of_estimated_recipes() -> None:
    entries = list(catalog.load())
    estimated = [entry for entry in entries if model_shape(entry.model, Diagnostics())]
    assert f"{len(estimated)} of the catalog's {len(entries)} recipes are estimated" in PAGE.read_text()


def test_of_models_without_an_estimate_those_on_the_page_start() -> None:
    without = [entry for entry in catalog.load() if model_shape(entry.model, Diagnostics()) is None]
    assert {entry.engine for entry in without} == {"bridge"}
    started = {entry.name for entry in without if entry.starts}
    sentence = PAGE.read_text().split("Of these the operator starts ")[1].split("; ")[0]
    assert started == set(re.findall(r"`([^`]+)`", sentence))
