"""What pages and comments have of Kubernetes' own defaults is the same everywhere."""

from pathlib import Path

import pytest
from localcluster.controlplane import STANDARD_HEARTBEATS

ROOT = Path(__file__).parents[3]
PAGES = (
    "charts/megatron-operator/values.yaml",
    "charts/megatron-operator/README.md",
    "docs/local-cluster.md",
    "docs/recovery.md",
    "docs/recovery-benchmark.md",
)


@pytest.mark.parametrize("page", PAGES)
def test_a_node_is_found_lost_after_the_grace_period_of_the_controller_manager(page: str) -> None:
    assert f"{STANDARD_HEARTBEATS.grace} s (40 s in older releases)" in (ROOT / page).read_text()
