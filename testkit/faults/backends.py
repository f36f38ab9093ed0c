"""The rows of the fault table with the kinds of job that JobSet's controller makes pods of.

Their controllers are processes of the host.
"""

import contextlib
from collections.abc import Callable

from localcluster import Cluster

from testkit.faults import infrastructure as infra
from testkit.faults.rows import ROWS, Row, kinds

CONTROLLERS = {"pytorchjob": (), "jobset": ("jobset",), "trainjob": ("jobset", "kubeflow-trainer")}
"""Names of the controllers of a backend that are processes of the host, as `Cluster.components` has them."""
OF_TRAINING_OPERATOR = "the training-operator is killed when a pod is gone"
EXTENDED = (
    "a rank is killed, master pod",
    "a launcher is killed, master",
    "a pod receives SIGTERM",
    "a worker pod exits early with code 0",
    "the master pod exits early with code 0",
    "the newest checkpoint's .metadata is torn",
    "the newest checkpoint's .metadata is truncated",
    "the newest checkpoint's metadata.json is torn",
    "the newest checkpoint's metadata.json is truncated",
    "the newest checkpoint's tracker is torn",
    "the newest checkpoint's tracker is truncated",
    "the newest checkpoint's tracker is empty",
    "a node is lost permanently",
)
"""Not among the quick rows, and tried with each kind of job."""


def controllers_running(cluster: Cluster, backend: str) -> contextlib.AbstractContextManager[None]:
    """Runs the controllers of a backend for the duration of the block, which may raise ClusterError.

    Raises KeyError on an unknown backend.
    """
    contexts: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
        "pytorchjob": contextlib.nullcontext,
        "jobset": cluster.jobsets,
        "trainjob": cluster.train_jobs,
    }
    return contexts[backend]()


def rows_with(backend: str) -> tuple[Row, ...]:
    """The quick rows and EXTENDED, each controller of the backend killed. Raises KeyError."""
    killed = tuple(
        Row(
            f"the controller {name} is killed when a pod is gone",
            infra.kill_during_recovery(infra.kill_controller(name), infra.STAGES["when the pod is gone"]),
            kinds("pod"),
            r"{pod}",
        )
        for name in CONTROLLERS[backend]
    )
    kept = [
        row for row in ROWS if row.name in EXTENDED or not (row.extended or row.name == OF_TRAINING_OPERATOR)
    ]
    return (*kept, *killed)
