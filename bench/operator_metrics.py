"""The Prometheus metrics of an operator under measurement."""

import urllib.request
from typing import Final

RECONCILES: Final = "megatron_operator_reconciles_total"


def scrape(port: int) -> str:
    """The metrics in Prometheus' text format; empty while nothing answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def total(metrics: str, prefix: str) -> float:
    """The sum of the series whose lines begin so."""
    return sum(float(line.rsplit(" ", 1)[1]) for line in metrics.splitlines() if line.startswith(prefix))
