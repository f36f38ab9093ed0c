"""Charts, points and the placement of ranks."""

import math
import re
from itertools import pairwise

import pytest
from megatron_operator.api.recovery_status import Incident
from megatron_operator.api.status import MegatronRecipeStatus, Plan, Progress
from megatron_operator.sdk.losses import LossPoint
from megatron_operator.ui.charts import MAX_POINTS, Line, Mark, Part, bar, line_chart, short, thinned
from megatron_operator.ui.placement import NODES_SHOWN, can_be_drawn, groups_of, placement, position
from megatron_operator.ui.points import MAX_SAMPLES, Point, Samples, merge, point_of, points_of_log

from testkit.example_runs import training_run


def plan(**changes: int) -> Plan:
    return Plan.model_validate(training_run("x")["status"]["plan"]).model_copy(update=changes)


def test_a_chart_has_a_text_for_those_who_do_not_see_it() -> None:
    svg = line_chart("Loss", "", [Line("", ((1.0, 9.5), (2.0, 3.25)))])
    assert "<title>Loss over iterations; 3.25 at iteration 2, lowest 3.25, highest 9.5</title>" in svg


def test_values_that_are_no_numbers_are_left_out_and_without_any_there_is_no_chart() -> None:
    assert line_chart("Loss", "", [Line("", ((1.0, math.nan), (2.0, math.inf)))]) == ""
    svg = line_chart("Loss", "", [Line("", ((1.0, math.nan), (2.0, 1.0)))])
    assert "nan" not in svg
    assert "<circle" in svg


def test_incidents_outside_of_the_iterations_shown_are_not_drawn() -> None:
    marks = [Mark(5, "1", "inside"), Mark(50, "2", "outside")]
    svg = line_chart("Loss", "", [Line("", ((1.0, 2.0), (10.0, 1.0)))], marks)
    assert "inside" in svg
    assert "outside" not in svg


@pytest.mark.parametrize("values", [(0.0, 0.0), (1e-30, 2e-30), (-5.0, 5.0), (1e20, 1e20), (7.0, 7.000001)])
def test_any_range_of_values_is_drawn_within_the_picture(values: tuple[float, float]) -> None:
    svg = line_chart("x", "", [Line("", tuple(enumerate(values)))], expected=values[0])
    found = re.search(r'points="([^"]+)"', svg)
    assert found is not None
    for pair in found[1].split():
        x, y = map(float, pair.split(","))
        assert 0 <= x <= 400
        assert 0 <= y <= 210


def test_a_spike_stays_visible_among_many_points() -> None:
    pairs = [(float(x), 2.0) for x in range(100_000)]
    pairs[77_777] = (77_777.0, 11.0)
    kept = thinned(pairs)
    assert len(kept) <= MAX_POINTS
    assert (77_777.0, 11.0) in kept
    assert list(kept) == sorted(kept)


def test_charts_of_the_same_iterations_have_the_same_axis() -> None:
    for values in (lambda x: x, lambda x: -x, lambda x: (x - 500) ** 2):
        svg = line_chart("x", "", [Line("", tuple((float(x), float(values(x))) for x in range(7, 1234)))])
        assert re.findall(r'text class="tick"[^>]*>((?:iteration )?[\d,]+)</text>', svg)[-3:] == [
            "7", "iteration 620", "1,233",
        ]  # fmt: skip


def test_numbers_are_short() -> None:
    found = [short(each) for each in (0, 2.3456, 283_398, 1.2e6, 3e-4)]
    assert found == ["0", "2.35", "283k", "1.2M", "3.0e-04"]
    assert [short(each) for each in (999_600, 999.6e6, -999_600, 999)] == ["1M", "1G", "-1M", "999"]
    assert short(0.4312, percent=True) == "43.1%"


def test_a_bar_never_exceeds_its_whole() -> None:
    svg = bar([Part("load", 60), Part("redo", 50), Part("start", -1), Part("detect", math.inf)], 100, "x")
    widths = [float(each) for each in re.findall(r'width="([\d.]+)"', svg)]
    assert sum(widths) <= 100
    assert len(widths) == 2


def test_samples_of_a_long_run_cover_all_of_it_and_keep_a_spike_of_its_beginning() -> None:
    samples = Samples()
    last = 20 * MAX_SAMPLES
    for iteration in range(last):
        loss = 9.0 if iteration == 777 else 2.0
        samples.add(MegatronRecipeStatus(progress=Progress(iteration=iteration, lm_loss=loss)))
    points = samples.points()
    assert len(points) <= MAX_SAMPLES
    iterations = [each.iteration for each in points]
    assert (iterations[0], iterations[-1]) == (0, last - 1)
    assert max(after - before for before, after in pairwise(iterations)) <= last // 200
    assert max(points, key=lambda each: each.lm_loss or 0.0).iteration == 777


def test_the_log_replaces_samples_within_its_iterations() -> None:
    samples = [Point(n) for n in (5, 12, 25)]
    log = [Point(n, 1.0) for n in (10, 20)]
    assert [each.iteration for each in merge(samples, log)] == [5, 10, 20, 25]
    assert merge(samples, []) == samples


def test_mfu_is_measured_work_over_the_peak_of_the_plan() -> None:
    planned = plan()
    assert planned.expected is not None
    measured = Progress(iteration=1, tflops_per_gpu=planned.expected.tflops_per_gpu / 2)
    point = point_of(measured, planned)
    assert point is not None
    assert point.mfu == pytest.approx(planned.expected.mfu / 2)
    assert point_of(measured, None) == Point(1)


def test_a_rank_is_placed_in_megatrons_order() -> None:
    planned = plan()
    found = position(planned, 25)
    assert (found.tp, found.dp, found.pp) == (1, 12, 0)
    assert position(planned, 63).pp == 1
    assert groups_of(planned, 25) == (("TP", (24, 25)), ("DP", tuple(range(1, 32, 2))), ("PP", (25, 57)))


def test_large_runs_are_shown_in_parts_which_end_at_the_last_node() -> None:
    planned = plan(world_size=8 * 100, nodes=100, data_parallel_size=200)
    assert [row.number for row in placement(planned, [], [], 96).rows] == [96, 97, 98, 99]
    beyond = placement(planned, [], [], 10**8)
    assert (beyond.first, beyond.previous, beyond.following) == (96, 96 - NODES_SHOWN, None)
    first = placement(planned, [], [])
    assert (len(first.rows), first.previous, first.following) == (NODES_SHOWN, None, NODES_SHOWN)


def test_the_rank_of_an_incident_is_marked() -> None:
    incident = Incident(number=1, time="2026-01-01T00:00:00Z", kind="rank", cause="it broke", rank=9)
    cells = [cell for row in placement(plan(), [], [incident]).rows for cell in row.cells]
    assert [cell.position.rank for cell in cells if cell.failed] == [9]


@pytest.mark.parametrize(
    "sizes",
    [
        {"perNode": 1 << 40},
        {"worldSize": 1 << 62, "tensorModelParallelSize": 1 << 58},
        {"pipelineModelParallelSize": 1 << 62},
        {"dataParallelSize": 0},
    ],
)
def test_a_plan_whose_sizes_do_not_agree_or_are_huge_is_not_drawn(sizes: dict[str, int]) -> None:
    known = training_run("x")["status"]["plan"]
    assert can_be_drawn(Plan.model_validate(known))
    assert not can_be_drawn(Plan.model_validate(known | sizes))


def test_speed_from_the_log_is_that_of_its_batch_during_a_ramp_up() -> None:
    planned = plan()
    assert planned.expected is not None
    seconds, largest = planned.expected.step_seconds, planned.global_batch_size
    batches = [largest // 4, largest, None]
    found = [
        LossPoint(at, "2026-01-01T10:00:00Z", 2.5, step_seconds=seconds, global_batch_size=batch)
        for at, batch in enumerate(batches, start=1)
    ]
    first, *rest = points_of_log(found, planned)
    speed = planned.expected.tokens_per_second_per_gpu * planned.world_size
    assert first.tokens_per_second == pytest.approx(speed / 4)
    assert first.mfu == pytest.approx(planned.expected.mfu / 4)
    assert [each.tokens_per_second for each in rest] == pytest.approx([speed, speed])
