"""The operator's Prometheus metrics of runs that were deleted, by namespace."""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import REGISTRY
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from megatron_operator.lifecycle.ledger_weeks import monday
from megatron_operator.lifecycle.usage_records import NamespaceUse, Records, total


class DeletedRunMetrics(Collector):
    """Keeps the sums of the operator's ConfigMaps, and makes this week's series when they are scraped."""

    def __init__(self) -> None:
        self._sums: dict[str, Mapping[str, NamespaceUse]] = {}

    def update(self, config_map: str, records: Records) -> None:
        """Set the sums of one ConfigMap."""
        self._sums[config_map] = records.namespaces

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """The metrics without series, so that registering them collects nothing."""
        return [
            GaugeMetricFamily(
                "megatron_deleted_runs_week_accelerator_seconds",
                "Seconds since Monday, 00:00 UTC, times the accelerators held, of runs that were deleted, by "
                "use: useful, lost",
                labels=("namespace", "use"),
            ),
            GaugeMetricFamily(
                "megatron_deleted_runs_week_cost",
                "What those cost that had a price",
                labels=("namespace",),
            ),
        ]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The metrics of all namespaces. Called by the thread that answers a scrape."""
        times, cost = self.describe()
        found = total([Records(namespaces=dict(each)) for each in list(self._sums.values())], ())
        week = monday(time.time())
        for namespace, use in found.items():
            if (in_week := use.weeks.get(week)) is not None:
                times.add_metric((namespace, "useful"), in_week.seconds - in_week.lost)
                times.add_metric((namespace, "lost"), in_week.lost)
                if in_week.cost is not None:
                    cost.add_metric((namespace,), in_week.cost)
        yield times
        yield cost


DELETED_RUNS: Final = DeletedRunMetrics()
"""Those of this process."""
REGISTRY.register(DELETED_RUNS)
