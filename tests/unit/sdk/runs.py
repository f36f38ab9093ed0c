"""The status of a run that failed, and a call that waits in another thread."""

import threading
from collections.abc import Callable

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


def in_background(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread
