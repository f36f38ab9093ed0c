"""Why a pod ended, in one line, from what Kubernetes and the trainer say of it."""

import json
from dataclasses import dataclass
from typing import Any

from megatron_operator.contract import CONTAINER_NAME, ExitCode

LONGEST = 400


@dataclass(frozen=True, slots=True)
class PodEnd:
    """How a pod ended."""

    cause: str
    """`worker-3: out of memory`."""
    exit_code: int | None = None
    checkpoint_iteration: int | None = None
    """Newest checkpoint that the trainer named when it ended."""

    @property
    def own_fault(self) -> bool:
        """False for a pod that only gave up waiting for others."""
        return self.exit_code != ExitCode.PEER_LOST


def short_name(pod: dict[str, Any], job_name: str) -> str:
    """`llama3-8b-worker-3` -> `worker-3`."""
    return str(pod["metadata"]["name"]).removeprefix(f"{job_name}-")


def pod_end(pod: dict[str, Any], job_name: str, container: str = CONTAINER_NAME) -> PodEnd | None:
    """How the pod ended or why it is being deleted; None while it lives."""
    name = short_name(pod, job_name)
    status = pod.get("status") or {}
    for state in status.get("containerStatuses") or []:
        ended = (state.get("state") or {}).get("terminated")
        if state.get("name") == container and ended and ended.get("exitCode") != 0:
            return _container_end(name, ended)
    for condition in status.get("conditions") or []:
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            said = condition.get("message") or condition.get("reason")
            return PodEnd(f"{name}: {said}"[:LONGEST])
    if status.get("phase") == "Failed":
        said = status.get("message") or status.get("reason") or "failed"
        return PodEnd(f"{name}: {said}"[:LONGEST])
    if pod["metadata"].get("deletionTimestamp"):
        node = pod.get("spec", {}).get("nodeName")
        return PodEnd(f"{name}: pod was deleted" + (f" (on {node})" if node else ""))
    return None


def _container_end(name: str, ended: dict[str, Any]) -> PodEnd:
    code = int(ended["exitCode"])
    if ended.get("reason") == "OOMKilled":
        return PodEnd(f"{name}: out of memory", code)
    text = (ended.get("message") or "").strip()
    try:
        said = json.loads(text)
    except ValueError:
        said = None
    if isinstance(said, dict) and said.get("message"):
        cause = f"{name}: {said['message']} (exit code {code})"
        iteration = said.get("checkpointIteration")
        return PodEnd(cause[:LONGEST], code, iteration if isinstance(iteration, int) else None)
    last_line = text.splitlines()[-1] if text else str(ended.get("reason") or "ended")
    return PodEnd(f"{name}: {last_line} (exit code {code})"[:LONGEST], code)


def last_words(pod: dict[str, Any], container: str = CONTAINER_NAME) -> dict[str, Any]:
    """The JSON that the trainer left when it ended well; empty while there is none."""
    for state in (pod.get("status") or {}).get("containerStatuses") or []:
        ended = (state.get("state") or {}).get("terminated")
        if state.get("name") == container and ended:
            try:
                said = json.loads(ended.get("message") or "")
            except ValueError:
                return {}
            return said if isinstance(said, dict) else {}
    return {}
