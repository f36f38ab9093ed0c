"""The picture of the dashboard: what it writes, and what it refuses."""

import importlib
import json
import math
from typing import Any

import numpy as np
import pytest

from tests.unit.chart.test_dashboard import DASHBOARD, ROOT


@pytest.fixture
def picture(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("dashboard_picture")


@pytest.fixture
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (484_000, "short", "484 K"),
        (2_500_000, "short", "2.5 Mil"),
        (12, "short", "12"),
        (0.9908, "percentunit", "99.1%"),
        (0.012, "s", "12 ms"),
        (90, "s", "1.5 mins"),
        (262_800, "s", "3.04 days"),
        (3e-4, "sci", "3.0e-4"),
        (0.03, "ops", "0.03 ops/s"),
        (1500, "reqps", "1.5K req/s"),
        (3117.2, "suffix:GPU-h", "3117 GPU-h"),
    ],
)
def test_values_are_written_in_the_unit_of_the_panel(
    picture: Any, value: float, unit: str, text: str
) -> None:
    assert picture.written(value, unit) == text


def test_every_panel_has_a_unit_that_the_picture_writes(picture: Any, dashboard: dict[str, Any]) -> None:
    for panel in dashboard["panels"]:
        if panel["type"] != "row":
            assert picture.written(1.0, panel["fieldConfig"]["defaults"]["unit"]), panel["title"]


def test_no_panel_makes_calendar_time_of_accelerator_hours(dashboard: dict[str, Any]) -> None:
    units = {
        each["title"]: each["fieldConfig"]["defaults"]["unit"]
        for each in dashboard["panels"]
        if "fieldConfig" in each
    }
    assert units["GPU-hours by category"] == units["Lost GPU-hours by run"] == "suffix:GPU-h"
    assert "h" not in units.values()


def test_a_panel_without_a_value_is_named(picture: Any, dashboard: dict[str, Any]) -> None:
    drawn = [each for each in dashboard["panels"] if each["type"] != "row"]
    found = {each["id"]: [picture.Series("x", np.array([math.nan, 1.0]))] for each in drawn}
    assert picture.empty_panels(dashboard, found) == []
    found[drawn[1]["id"]] = []
    found[drawn[3]["id"]] = [picture.Series("x", np.array([math.nan, math.nan]))]
    assert picture.empty_panels(dashboard, found) == [drawn[1]["title"], drawn[3]["title"]]


def test_queries_are_sent_without_variables_and_an_unknown_one_is_refused(
    picture: Any, dashboard: dict[str, Any]
) -> None:
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            assert "$" not in picture.expanded(target["expr"]).replace('"$1"', "")
    with pytest.raises(KeyError, match="interval"):
        picture.expanded("rate(x[$interval])")


def test_a_run_is_one_colour_and_series_are_named_by_their_labels(picture: Any) -> None:
    name = picture.legend("{{namespace}}/{{recipe}} planned", {"namespace": "a", "recipe": "b"})
    assert name == "a/b planned"
    assert picture.color_of("a/b") == picture.color_of("a/b") != picture.color_of("a/c")
