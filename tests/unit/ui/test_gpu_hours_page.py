"""The page of GPU hours: the sums of `megatron ledger`, by week, namespace and cost."""

import re

from megatron_operator.cli.deleted_runs import UNKNOWN
from megatron_operator.cli.fleet_ledger import fleet_ledger
from megatron_operator.cli.weekly_ledger import weekly_ledger
from starlette.testclient import TestClient

from testkit.example_runs import NOW, ExampleRuns
from tests.unit.ui.test_pages import text_of


def test_gpu_hours_are_the_sums_of_the_command(page: TestClient, runs: ExampleRuns) -> None:
    found = fleet_ledger(list(runs.recipes.values()), NOW, None)
    text = text_of(page, "/ledger")
    rows = dict(re.findall(r'<tr><th scope="row">(\w+)</th>(.+?)</tr>', text.partition("By week")[0]))
    entries = {
        each["namespace"]: each for each in [*found["namespaces"], found["total"] | {"namespace": "total"}]
    }
    assert set(rows) == set(entries)
    assert found["total"]["gpuHours"] > 0
    for name, each in entries.items():
        cells = re.findall(r'<td class="number">(.+?)</td>', rows[name])
        assert cells[:3] == [f"{each['runs']:,}", f"{each['gpuHours']:,.1f}", f"{each['lostGpuHours']:,.1f}"]
    assert UNKNOWN.not_counted in text


def test_gpu_hours_by_week_are_the_sums_of_the_command(page: TestClient, runs: ExampleRuns) -> None:
    found = weekly_ledger(list(runs.recipes.values()), NOW, None)["weeks"]
    section = text_of(page, "/ledger").partition("By week")[2].partition("</section>")[0]
    groups = re.findall(r'scope="rowgroup"[^>]*>(?:Week of )?(.+?)</th>(.+?)</tbody>', section, re.DOTALL)
    rows = [
        (week.lower(), *row)
        for week, body in groups
        for row in re.findall(r'<tr><th scope="row">(.+?)</th>(.+?)</tr>', body)
    ]
    assert len({week for week, *_ in rows}) == len(groups), "each week is a group of its own"
    assert [row[:2] for row in rows] == [(each["week"], each["namespace"]) for each in found]
    assert found
    for (_, _, cells), each in zip(rows, found, strict=True):
        numbers = re.findall(r'<td class="number">(.+?)</td>', cells)
        assert numbers[:3] == [
            f"{each['runs']:,}",
            f"{each['gpuHours']:,.1f}",
            f"{each['lostGpuHours']:,.1f}",
        ]


def test_gpu_hours_have_their_cost_where_a_price_is_known(page: TestClient, runs: ExampleRuns) -> None:
    assert ">Cost</th>" not in text_of(page, "/ledger")
    for recipe in runs.recipes.values():
        recipe["status"].setdefault("plan", {})["pricePerGpuHour"] = 2.5
    text = text_of(page, "/ledger")
    assert text.count(">Cost</th>") == 2, "by namespace and by week"
    cost = fleet_ledger(list(runs.recipes.values()), NOW, None)["total"]["cost"]
    assert f'<td class="number">{cost:,.2f}</td>' in text


def test_gpu_hours_of_one_namespace_are_those_of_its_runs(page: TestClient) -> None:
    text = text_of(page, "/ledger?namespace=research")
    assert re.findall(r'<tr><th scope="row">(\w+)</th>', text)[:2] == ["research", "total"]


def test_without_any_ledger_the_page_of_gpu_hours_has_no_table(page: TestClient, runs: ExampleRuns) -> None:
    runs.recipes.clear()
    text = text_of(page, "/ledger")
    assert "No run that you may list has a ledger yet." in text
    assert "<table>" not in text
