"""How pods ended, in memory, because termination messages vanish with the pods."""

from collections.abc import Callable
from dataclasses import replace

from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.lifecycle.pod_termination import DEVICE_TAINTED, PodEnd, pod_end, short_name
from megatron_operator.lifecycle.status_builder import RecipeKey
from megatron_operator.lifecycle.status_size import LONGEST_CAUSE
from megatron_operator.manifests.job_backends import backend_of_pod, stable_name

_Pod = tuple[str, str]
"""Creation time and UID."""


class PodEndCache:
    """The ends of runs' pods since their replacements were counted last.

    `device_taints` is why a pod was evicted from a node for the taint of a device; None: not known.
    """

    def __init__(self, device_taints: Callable[[str], str | None] | None = None) -> None:
        self._device_taints = device_taints
        self._ends: dict[RecipeKey, dict[str, dict[_Pod, PodEnd]]] = {}
        """By the pods' names in the gang."""

    def add(self, key: RecipeKey, pod: Object) -> None:
        """Keep how a pod ended, if it has ended."""
        job_name = backend_of_pod(pod).job_name(pod)
        end = pod_end(pod, job_name) if job_name else None
        if job_name is None or end is None:
            return
        if end.disruption == DEVICE_TAINTED and end.node is not None and self._device_taints is not None:
            cause = self._device_taints(end.node)
            text = f"{short_name(pod, job_name)}: {cause}"[:LONGEST_CAUSE]
            end = end if cause is None else replace(end, cause=text)
        known = self._ends.setdefault(key, {}).setdefault(stable_name(pod), {})
        identity = (str(pod["metadata"]["creationTimestamp"]), str(pod["metadata"]["uid"]))
        # A deletion after the end adds nothing.
        if end.exit_code is not None or identity not in known:
            known[identity] = end

    def drop(self, key: RecipeKey) -> None:
        """Forget the ends of a run's pods."""
        self._ends.pop(key, None)

    def merged(
        self, key: RecipeKey, recorded: dict[str, PodEnd], pods_as_of: str | None
    ) -> dict[str, PodEnd]:
        """How the pods ended that are to be replaced, by their names in the gang: `run-worker-3`.

        Of several pods in one place, that of the last one that was counted. A later one was deleted before it
        counted: with its Job, which had replaced a failed pod itself.

        Args:
            key: The run.
            recorded: The ends in its status: of pods that the operator deletes.
            pods_as_of: Creation time of the newest pod that was counted, RFC 3339; None before the first.
        """
        later: dict[str, PodEnd] = {}
        known: dict[str, PodEnd] = {}
        for place, ends in self._ends.get(key, {}).items():
            counted = [each for each in ends if pods_as_of is None or each[0] <= pods_as_of]
            chosen = max(counted or ends)
            (known if counted else later)[place] = ends[chosen]
            # A gang that is never complete has ever more pods in a place, none of which is counted.
            for each in ends.keys() - {chosen, max(ends)}:
                del ends[each]
        return later | recorded | known
