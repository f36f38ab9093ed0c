"""The operator's own figures, for Prometheus."""

from typing import Final

from prometheus_client import Counter, Histogram

LOOKS: Final = Counter("megatron_operator_reconciles", "Looks at recipes, by how they ended", ["outcome"])
SECONDS: Final = Histogram(
    "megatron_operator_reconcile_seconds",
    "Time of one look at a recipe",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
WRITES: Final = Counter(
    "megatron_operator_writes", "Requests that change something, by kind", ["method", "plural"]
)
