"""A recipe that sets lr alone has a warning of the minLr that the catalog keeps."""

from typing import Any

import pytest
from megatron_operator import catalog
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.validation import parse_spec
from megatron_operator.cli.default_platform import default_platform
from megatron_operator.planner import admit


def rate_warnings(**training: Any) -> list[str]:
    """Of llama3.1-8b, whose lr is 3e-4 and minLr 3e-5."""
    spec = {
        "recipe": "llama3.1-8b",
        "accelerator": {"type": "h100-sxm", "count": 8},
        "data": {"mockData": True},
        "training": training,
    }
    warnings = admit("run", parse_spec(spec), default_platform(), catalog.load()).warnings
    return [each for each in warnings if "training.lr" in each]


def test_a_rate_that_does_not_decay_because_of_the_catalogs_lowest_is_named() -> None:
    assert rate_warnings(lr=3e-5) == [
        "training.lr 3e-05 does not decay: minLr is 3e-05, which the recipe does not set; set it, for example"
        " 3e-06"
    ]
    assert "decays to 75% of it only" in rate_warnings(lr=4e-5)[0]


def test_a_rate_that_decays_or_whose_lowest_the_recipe_sets_has_no_warning() -> None:
    assert rate_warnings() == []
    assert rate_warnings(lr=2e-4) == []
    assert rate_warnings(lr=3e-5, minLr=3e-5) == []
    assert rate_warnings(lr=3e-5, lrDecayStyle="constant") == []


def test_the_catalogs_lowest_rate_above_lr_is_refused_as_not_set_by_the_recipe() -> None:
    with pytest.raises(InvalidRecipeError) as refused:
        rate_warnings(lr=2e-5)
    assert str(refused.value.errors[0]) == (
        "spec.training.minLr: 3e-05, which the recipe does not set, is above lr 2e-05; set minLr beside lr, "
        "for example 2e-06"
    )
    with pytest.raises(InvalidRecipeError, match=r"0\.001 is above lr 0\.0003; set at most 0\.0003"):
        rate_warnings(minLr=1e-3)
