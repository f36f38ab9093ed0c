"""The Prometheus metrics of an operator under measurement."""

import re
import urllib.request
from typing import Final

RECONCILES: Final = "megatron_operator_reconciles_total"
DECISIONS: Final = "megatron_operator_decisions_total"


def scrape(port: int) -> str:
    """The metrics in Prometheus' text format; empty while nothing answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def by_label(metrics: str, name: str) -> dict[str, float]:
    """Label's value -> value, of the series of a metric with one label, the largest first."""
    found = re.findall(rf'^{name}{{\w+="([^"]*)"}} (\S+)$', metrics, re.MULTILINE)
    return dict(sorted(((label, float(value)) for label, value in found), key=lambda each: -each[1]))


def total(metrics: str, prefix: str) -> float:
    """The sum of the series whose lines begin so."""
    return sum(float(line.rsplit(" ", 1)[1]) for line in metrics.splitlines() if line.startswith(prefix))
