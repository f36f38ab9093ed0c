"""Draws docs/dashboard.png, the Grafana dashboard without Grafana: `make dashboard-picture`.

Each panel of dashboard.json is drawn in its place from what a real Prometheus answers to its queries, for the
example fleet of dashboard_samples.py. Needs `prometheus` and `promtool` (Debian's package prometheus).
Exits with 1 where a panel has no series.
"""

import asyncio
import io
import itertools
import json
import math
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from dashboard import TARGET, WIDTH
from dashboard_samples import END, HOUR, INTERVAL, record
from grafana_units import written
from PIL import Image

from testkit.prometheus import Prometheus, PrometheusMissingError, program, serve

mpl.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

PICTURE: Final = Path(__file__).parents[1] / "docs" / "dashboard.png"
HOURS: Final = 6.0
"""The dashboard's own range, `now-6h`."""
STEP: Final = INTERVAL
"""Seconds between two values that are drawn."""
SETTINGS: Final = {"$namespace": ".*", "$run": ".*", "$__rate_interval": f"{4 * INTERVAL:.0f}s"}
"""What Grafana puts in place of the variables: all runs, and four times the interval of scrapes."""
COLUMN, ROW = 0.62, 0.29
"""Inches of a column and a row of the grid."""
COLORS: Final = (
    "#73BF69", "#F2CC0C", "#8AB8FF", "#FF780A", "#F2495C", "#5794F2", "#B877D9", "#705DA0", "#37872D",
    "#FADE2A", "#447EBC", "#C15C17",
)  # fmt: skip
"""Grafana's classic palette."""
PAGE, PANEL, TEXT, MUTED, LINES = "#111217", "#181B1F", "#D8D9DF", "#9FA3AC", "#2C3036"
CAPTION: Final = (
    "Drawn by scripts/dashboard_picture.py from the dashboard's JSON and the answers of a Prometheus "
    "to its queries, not by Grafana.\n"
    "The fleet is simulated: the operator's code decided, reported and exported; no model was trained."
)

Object = dict[str, Any]


def color_of(name: str) -> str:
    """The colour of a series: of each name the next one of the palette, in all panels the same."""
    return COLORS[_numbers[name] % len(COLORS)]


_numbers: defaultdict[str, int] = defaultdict(itertools.count().__next__)


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a panel; a value that is missing is NaN."""

    name: str
    values: "np.ndarray[Any, np.dtype[np.float64]]"


def expanded(expression: str) -> str:
    """A query with the variables of the dashboard replaced. Raises KeyError for another one."""
    return re.sub(r"\$[a-z_]\w+", lambda variable: SETTINGS[variable[0]], expression)


def answers(server: Prometheus, panel: Object) -> list[Series]:
    """The series of all queries of a panel over the range, named by its legends."""
    times = np.arange(END - HOURS * HOUR, END + STEP / 2, STEP)
    found = []
    for target in panel["targets"]:
        for each in server.query_range(expanded(target["expr"]), times[0], times[-1], STEP):
            values = np.full(len(times), math.nan)
            for at, value in each["values"]:
                values[round((float(at) - times[0]) / STEP)] = float(value)
            found.append(Series(legend(target["legendFormat"], each["metric"]), values))
    return found


def legend(form: str, labels: dict[str, str]) -> str:
    """The name of a series with these labels, by the legend of its query; a missing label is empty."""
    return re.sub(r"\{\{(\w+)\}\}", lambda label: labels.get(label[1], ""), form)


def empty_panels(dashboard: Object, found: dict[int, list[Series]]) -> list[str]:
    """Titles of panels without a value: a user could not see whether their query is wrong."""
    return [
        panel["title"]
        for panel in dashboard["panels"]
        if panel["type"] != "row" and not any(np.isfinite(each.values).any() for each in found[panel["id"]])
    ]


def draw(dashboard: Object, found: dict[int, list[Series]], incidents: Sequence[float]) -> bytes:
    """The dashboard as PNG; `incidents` are the times of its annotations in hours before its end."""
    rows = max(each["gridPos"]["y"] + each["gridPos"]["h"] for each in dashboard["panels"]) + 3
    figure = pyplot.figure(figsize=(WIDTH * COLUMN, rows * ROW), facecolor=PAGE)
    whole = (WIDTH, rows)
    title = f"{dashboard['title']}        last {HOURS:.0f} hours"
    figure.text(0.008, 1 - 0.7 / rows, title, color=TEXT, fontsize=13, va="center")
    figure.text(0.992, 1 - 0.7 / rows, CAPTION, color=MUTED, fontsize=8, va="center", ha="right")
    for panel in dashboard["panels"]:
        at = panel["gridPos"] | {"y": panel["gridPos"]["y"] + 1.5}
        if panel["type"] == "row":
            place = 1 - (at["y"] + at["h"] / 2) / rows
            figure.text(
                0.008, place, f"▾ {panel['title']}", color=TEXT, fontsize=11, weight="bold", va="center"
            )
            continue
        gap = 0.12
        box = (
            (at["x"] + gap) / whole[0],
            1 - (at["y"] + at["h"] - gap) / whole[1],
            (at["w"] - 2 * gap) / whole[0],
            (at["h"] - 2 * gap) / whole[1],
        )
        _panel(figure, box, panel, found[panel["id"]], incidents)
    file = io.BytesIO()
    figure.savefig(file, dpi=100, facecolor=PAGE)
    pyplot.close(figure)
    return _reduced(file.getvalue())


def _panel(
    figure: Any, box: Sequence[float], panel: Object, found: list[Series], incidents: Sequence[float]
) -> None:
    left, bottom, width, height = box
    frame = figure.add_axes(box, facecolor=PANEL)
    frame.set(xticks=[], yticks=[])
    for spine in frame.spines.values():
        spine.set_color(LINES)
    frame.text(0.015, 0.975, panel["title"], color=TEXT, fontsize=9.5, va="top", transform=frame.transAxes)
    unit = panel["fieldConfig"]["defaults"]["unit"]
    inner = (left + width * 0.11, bottom + height * 0.26, width * 0.86, height * 0.60)
    newest = [(each.name, each.values[np.isfinite(each.values)][-1]) for each in found]
    if panel["type"] == "timeseries":
        table = panel["options"]["legend"]["displayMode"] == "table"
        if table:
            inner = (left + width * 0.09, bottom + height * 0.12, width * 0.60, height * 0.74)
            _table(figure, (left + width * 0.72, bottom, width * 0.26, height), newest, unit)
        axes = figure.add_axes(inner, facecolor=PANEL)
        _time_series(axes, panel, found, incidents)
        if not table:
            _legend(frame, [each.name for each in found])
    else:
        if panel["type"] == "stat":
            text = written(newest[0][1], unit)
            frame.text(0.5, 0.45, text, color=COLORS[0], fontsize=26, ha="center", va="center")
        else:
            axes = figure.add_axes((left, bottom + height * 0.08, width * 0.5, height * 0.75))
            colors = [color_of(name) for name, _ in newest]
            axes.pie([value for _, value in newest], colors=colors, startangle=90, counterclock=False)
            _table(figure, (left + width * 0.53, bottom, width * 0.44, height), newest, unit)


def _time_series(axes: Axes, panel: Object, found: list[Series], incidents: Sequence[float]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    hours = np.linspace(-HOURS, 0, len(found[0].values)) if found else np.array([-HOURS, 0])
    for ago in incidents:
        axes.axvline(-ago, color="#F2495C", linewidth=0.8, linestyle=(0, (4, 3)))
    if defaults["custom"]["stacking"]["mode"] == "normal":
        below = np.zeros(len(hours))
        for each in found:
            top = below + np.nan_to_num(each.values)
            color = color_of(each.name)
            axes.fill_between(
                hours, below, top, color=color, alpha=defaults["custom"]["fillOpacity"] / 100, linewidth=0
            )
            axes.plot(hours, np.where(np.isfinite(each.values), top, math.nan), color=color, linewidth=1)
            below = top
    else:
        for each in found:
            axes.plot(hours, each.values, color=color_of(each.name), linewidth=1.1)
    low, high = axes.get_ylim()
    axes.set_ylim(defaults.get("min", low), defaults.get("max", max(high, defaults.get("min", low) + 1e-9)))
    axes.set_xlim(-HOURS, 0)
    axes.set_xticks(
        range(-int(HOURS), 1, 2), [f"{each:+d} h" if each else "now" for each in range(-int(HOURS), 1, 2)]
    )
    axes.yaxis.set_major_locator(mpl.ticker.MaxNLocator(4, integer=defaults.get("decimals") == 0))
    axes.yaxis.set_major_formatter(lambda value, _: written(value, defaults["unit"]))
    axes.tick_params(colors=MUTED, labelsize=7, length=0)
    axes.grid(color=LINES, linewidth=0.6)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _legend(frame: Axes, names: Sequence[str]) -> None:
    """A list below the chart as Grafana's: as many names in a row as fit, and three rows of them."""
    width, space, x, row = frame.get_window_extent().width, 30.0, 8.0, 0
    for name in names:
        text = frame.annotate(
            name, (0, 0), (x + 14, 27 - row * 10), xycoords="axes pixels", textcoords="axes pixels",
            color=TEXT, fontsize=7, va="center",
        )  # fmt: skip
        extent = text.get_window_extent().width
        if x + extent + space > width and x > 8.0:
            row, x = row + 1, 8.0
            text.set_position((x + 14, 27 - row * 10))
        if row > 2:
            text.remove()
            return
        frame.annotate(
            "▬", (0, 0), (x, 27 - row * 10), xycoords="axes pixels", textcoords="axes pixels",
            color=color_of(name), fontsize=8, va="center",
        )  # fmt: skip
        x += extent + space


def _table(figure: Any, box: Sequence[float], newest: Sequence[tuple[str, float]], unit: str) -> None:
    left, bottom, width, height = box
    for number, (name, value) in enumerate(newest):
        y = bottom + height * (0.84 - 0.068 * number)
        figure.text(left, y, "▬", color=color_of(name), fontsize=8, va="center")
        figure.text(left + width * 0.16, y, name, color=TEXT, fontsize=7, va="center")
        figure.text(left + width, y, written(value, unit), color=TEXT, fontsize=7, va="center", ha="right")


def _reduced(png: bytes) -> bytes:
    """The picture with a palette, a third as large."""
    file = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(128).save(file, "png", optimize=True)
    return file.getvalue()


def incident_times(server: Prometheus, dashboard: Object) -> list[float]:
    """When the dashboard's annotations begin, in hours before its end."""
    [annotation] = dashboard["annotations"]["list"]
    window = END - HOURS * HOUR, END, STEP
    found = []
    for each in server.query_range(expanded(annotation["expr"]), *window):
        last = 0.0
        for at, _ in each["values"]:
            if at - last > 2 * STEP:
                found.append((END - at) / HOUR)
            last = at
    return found


def main() -> int:
    """Write the picture. 0 where each panel has series."""
    dashboard = json.loads(TARGET.read_text())
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        try:
            promtool = program("promtool")
            program("prometheus")
        except PrometheusMissingError as error:
            print(error, file=sys.stderr)
            return 2
        (folder / "samples").write_text("\n".join(asyncio.run(record(HOURS + 1))) + "\n")
        blocks = ["tsdb", "create-blocks-from", "openmetrics", folder / "samples", folder / "data"]
        subprocess.run([promtool, *blocks], check=True, stdout=subprocess.DEVNULL)
        # A series that a scrape no longer has ends at once; the blocks cannot have the marks of that.
        options = (f"--query.lookback-delta={INTERVAL - 1:.0f}s", "--storage.tsdb.retention.time=100y")
        with serve(folder, {}, *options) as server:
            panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
            found = {panel["id"]: answers(server, panel) for panel in panels}
            incidents = incident_times(server, dashboard)
    PICTURE.write_bytes(draw(dashboard, found, incidents))
    print(f"docs/{PICTURE.name}: {PICTURE.stat().st_size // 1000} kB")
    empty = empty_panels(dashboard, found)
    print("\n".join(f"no series: {title}" for title in empty) or f"{len(found)} panels have series")
    return 1 if empty else 0


if __name__ == "__main__":
    sys.exit(main())
