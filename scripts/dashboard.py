"""Generates the Grafana dashboard that the chart ships.

.venv/bin/python scripts/dashboard.py          # write
.venv/bin/python scripts/dashboard.py --check  # exit 1 if the file is stale

Edit dashboard_panels.py, not the JSON: layout and identifiers follow from the order of the panels.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

from dashboard_panels import INTERRUPTIONS, ROWS, Panel

TARGET = Path(__file__).parents[1] / "charts" / "megatron-operator" / "files" / "dashboard.json"
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
WIDTH: Final = 24
"""Columns of Grafana's grid."""
PANEL_HEIGHT: Final = 8


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        header = {"type": "row", "title": title, "collapsed": False, "panels": []}
        panels.append(header | {"gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1}})
        top, left = top + 1, 0
        for panel in row:
            if left + panel.width > WIDTH:
                top, left = top + PANEL_HEIGHT, 0
            position = {"x": left, "y": top, "w": panel.width, "h": PANEL_HEIGHT}
            panels.append(_panel(panel) | {"gridPos": position})
            left += panel.width
        top += PANEL_HEIGHT
    return {
        "uid": "megatron-operator",
        "title": "Megatron Operator",
        "description": "Runs, their speed and interruptions, the ledger of time, and the operator itself.",
        "tags": ["megatron"],
        "schemaVersion": 38,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": _variables()},
        "annotations": {"list": [_annotation()]},
        "panels": [{"id": number} | panel for number, panel in enumerate(panels, 1)],
    }


def _panel(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.minimum is not None:
        defaults["min"] = panel.minimum
    if panel.maximum is not None:
        defaults["max"] = panel.maximum
    if panel.decimals is not None:
        defaults["decimals"] = panel.decimals
    if panel.kind != "stat":
        # By name, as the labels of operator and pods sort otherwise: a run has one colour in all panels.
        defaults["color"] = {"mode": "palette-classic-by-name"}
    if panel.kind == "timeseries":
        stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
        defaults["custom"] = {
            "fillOpacity": 30 if panel.stacked else 0,
            "showPoints": "never",
            "stacking": stacking,
        }
        legend: dict[str, Any] = {"displayMode": "list", "placement": "bottom", "showLegend": True}
        if panel.table:
            legend |= {"displayMode": "table", "placement": "right", "calcs": ["lastNotNull"]}
        options = {
            "legend": legend,
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    else:
        calculation = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        options = {"reduceOptions": calculation}
        if panel.kind == "piechart":
            legend = {"displayMode": "table", "placement": "right", "showLegend": True, "values": ["value"]}
            options["legend"] = legend
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.meaning,
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": DATASOURCE, "expr": query, "legendFormat": legend}
            for number, (query, legend) in enumerate(panel.queries)
        ],
    }


def _variables() -> list[dict[str, Any]]:
    """Data source, namespaces and runs that the viewer chooses."""
    phase = "megatron_recipe_phase"
    values = {
        "namespace": f"label_values({phase}, namespace)",
        "run": f'label_values({phase}{{namespace=~"$namespace"}}, name)',
    }
    chosen = [
        {
            "name": name,
            "label": name.capitalize(),
            "type": "query",
            "datasource": DATASOURCE,
            "query": {"query": query, "refId": name},
            "definition": query,
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }
        for name, query in values.items()
    ]
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    return [source, *chosen]


def _annotation() -> dict[str, Any]:
    return {
        "name": "Incidents",
        "enable": True,
        "iconColor": "red",
        "datasource": DATASOURCE,
        "expr": INTERRUPTIONS,
        "titleFormat": "{{namespace}}/{{name}}",
        "textFormat": "{{kind}}",
    }


def main() -> int:
    """Write the file, or compare it. Returns an exit code."""
    text = json.dumps(dashboard(), indent=2) + "\n"
    if "--check" not in sys.argv:
        TARGET.write_text(text)
    elif not TARGET.exists() or TARGET.read_text() != text:
        print(f"{TARGET.name} is stale: run scripts/dashboard.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
