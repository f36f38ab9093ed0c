"""Pods, lines of logs and a status as a run has them, and a call that waits in another thread."""

import threading
from collections.abc import Callable
from typing import Any

INCIDENT = {
    "number": 1,
    "time": "2026-01-01T11:00:00Z",
    "kind": "rank",
    "pod": "worker-0",
    "rank": 3,
    "cause": "rank 3 was killed by SIGKILL",
    "iteration": 130,
    "resumedFrom": 120,
    "lostIterations": 10,
    "seconds": {"detect": 1.0, "load": 2.0},
    "recoveredAt": "2026-01-01T11:00:05Z",
}
FAILED = {
    "phase": "Failed",
    "observedGeneration": 1,
    "conditions": [
        {
            "type": "Failed",
            "status": "True",
            "reason": "BudgetExhausted",
            "message": "10 restarts without a new checkpoint",
            "lastTransitionTime": "2026-01-01T12:00:00Z",
        }
    ],
    "recovery": {"restarts": 1, "lastIncident": INCIDENT, "history": [INCIDENT]},
}


def pod(kind: str, index: int) -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"tiny-{kind}-{index}",
            "creationTimestamp": "2026-01-01T10:00:00Z",
            "labels": {
                "training.kubeflow.org/replica-type": kind,
                "training.kubeflow.org/replica-index": str(index),
            },
        },
        "spec": {"nodeName": "node"},
    }


def line(iteration: int, loss: float, second: int = 0) -> str:
    return (
        f"2026-01-01T10:00:{second:02}.5Z  [2026-01-01 10:00:00.123456] iteration {iteration:8d}/     200 |"
        f" consumed samples: {iteration * 8:12d} | elapsed time per iteration (ms): 250.0 |"
        f" learning rate: 1.500000E-04 | global batch size:     8 | lm loss: {loss:.6E} | loss scale: 1.0 |"
        " grad norm: 1.234 | number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def in_background(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread
