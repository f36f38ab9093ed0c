"""The queue of a fleet of which Kueue admits the runs: `--gangs kueue`."""

import contextlib
from collections.abc import Iterator
from typing import Final

from bench.scale_cluster import NAMESPACE, Bench, wait_for
from testkit.fake_nodes import fake_node
from testkit.kueue_objects import GPU, cluster_queue, cluster_wide, is_active, local_queue

QUEUE: Final = "fleet"
"""Name of the LocalQueue, its ClusterQueue and its ResourceFlavor."""
SCHEDULER: Final = "default-scheduler"
"""Places the pods of runs that were admitted, one by one."""


@contextlib.contextmanager
def queues(bench: Bench, nodes: int) -> Iterator[str]:
    """Run Kueue with a queue whose quota is what all nodes have; yields the pods' `schedulerName`."""
    with bench.cluster.kueue():
        allocatable = fake_node("any", rack="any")["status"]["allocatable"]
        quotas = {
            GPU: str(int(allocatable[GPU]) * nodes),
            "cpu": str(int(allocatable["cpu"]) * nodes),
            "memory": f"{int(allocatable['memory'].removesuffix('Gi')) * nodes}Gi",
        }
        bench.api.create(cluster_wide("ResourceFlavor", QUEUE, {}))
        bench.api.create(cluster_queue(QUEUE, quotas))
        bench.api.create(local_queue(QUEUE, NAMESPACE, QUEUE))
        wait_for("the queue", lambda: is_active(bench.api, QUEUE, NAMESPACE), 60.0)
        yield SCHEDULER
