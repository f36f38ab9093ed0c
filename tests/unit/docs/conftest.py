"""The chart, rendered with the real helm."""

from tests.unit.chart.conftest import helm, render

__all__ = ["helm", "render"]
