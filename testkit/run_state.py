"""Waits for a state of a whole run: the recipe, its conditions, its job and its pods, all at the same moment.

The operator creates objects before it writes the status, and writes the status several times on the way to a
state. A test that waits for one field and then reads another one may read between two writes. So a test names
everything that it is about to use; the wait returns one state in which all of it holds, and the test reads
that.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from megatron_operator.manifests import trainjob
from megatron_operator.manifests.job_backends import backend_of, backend_of_kind, stable_name
from urllib3.exceptions import HTTPError

from testkit.api_server import Api, Object
from testkit.errors import ApiError
from testkit.waiting import DEADLINE, wait_until

PYTORCHJOB = "PyTorchJob"


@dataclass(frozen=True)
class RunState:
    """A recipe, its job and its pods; the recipe did not change while the others were read."""

    recipe: Object
    job: Object | None
    """With its pod templates, also where another object has them."""
    pods: dict[str, Object]
    """The job's pods by their place in the gang, for example `worker-0`."""

    @property
    def status(self) -> Object:
        """The recipe's status; empty while there is none."""
        return dict(self.recipe.get("status") or {})

    @property
    def phase(self) -> str | None:
        """The status' phase."""
        return self.status.get("phase")

    @property
    def recovery(self) -> Object:
        """status.recovery; empty while there is none."""
        return dict(self.status.get("recovery") or {})

    @property
    def generation(self) -> int:
        """metadata.generation of the recipe."""
        return int(self.recipe["metadata"]["generation"])

    @property
    def conditions(self) -> dict[str, Object]:
        """Conditions by type."""
        return {condition["type"]: condition for condition in self.status.get("conditions") or []}

    @property
    def job_uid(self) -> str | None:
        """uid of the job; None where there is no job or it is being deleted."""
        if self.job is None or "deletionTimestamp" in self.job["metadata"]:
            return None
        return str(self.job["metadata"]["uid"])

    @property
    def pod_uids(self) -> set[str]:
        """uids of all pods, those that are being deleted included."""
        return {pod["metadata"]["uid"] for pod in self.pods.values()}

    def uid_of(self, pod: str) -> str:
        """uid of a pod by its short name. Raises KeyError."""
        return str(self.pods[pod]["metadata"]["uid"])

    def node_of(self, pod: str) -> str:
        """Node of a pod by its short name. Raises KeyError where it does not exist or is not bound."""
        return str(self.pods[pod]["spec"]["nodeName"])

    @property
    def running_pods(self) -> set[str]:
        """Short names of pods that run and are not being deleted."""
        return {
            name
            for name, pod in self.pods.items()
            if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        }

    @property
    def _container(self) -> Object:
        return dict(self.pod_specs[0]["containers"][0])

    @property
    def arguments(self) -> list[str]:
        """Megatron's arguments in the job. Raises AssertionError where there is no job."""
        return list(self._container["args"])

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the trainer container that have a value. Raises AssertionError without a job."""
        return {each["name"]: each["value"] for each in self._container["env"] if "value" in each}

    @property
    def pod_specs(self) -> list[Object]:
        """Specs of the job's pod templates, that of the Master first. Raises AssertionError without a job."""
        assert self.job is not None, "the run has no job"
        return [dict(each["spec"]) for each in backend_of(self.job).templates(self.job)]

    @property
    def replicas(self) -> int:
        """Pods that the job asks for; 0 where there is no job or it is being deleted."""
        if self.job is None or self.job_uid is None:
            return 0
        return backend_of(self.job).size(self.job)


@dataclass(frozen=True)
class Expected:
    """A state of a run. What is not given is not checked."""

    phase: str | Collection[str] = ()
    """One phase or several."""
    conditions: Mapping[str, str | None] = field(default_factory=dict)
    """Reason by type of condition, of the recipe's current generation; None: there is no such condition."""
    status: Mapping[str, Any] = field(default_factory=dict)
    """A part of the status; nested mappings are compared by the keys that are given."""
    pods: int | None = None
    """Exactly so many pods exist, the Master and the workers of the job, and all run."""
    without: Collection[str] = ()
    """uids of pods and jobs of which none is left."""
    job: bool | None = None
    """Whether there is a job that is not being deleted."""
    observed: bool = False
    """Whether the operator has carried out the recipe's current generation."""
    where: Callable[[RunState], object] | None = None
    """Any other requirement, taken as true or false; called only once everything else holds."""

    def missing_in(self, state: RunState) -> list[str]:
        """What does not hold yet, each described in a few words."""
        found = []
        phases = {self.phase} if isinstance(self.phase, str) else set(self.phase)
        if phases and state.phase not in phases:
            found.append(f"phase {' or '.join(sorted(phases))}")
        found += [
            f"condition {kind} {reason or 'absent'}"
            for kind, reason in self.conditions.items()
            if not _has_condition(state, kind, reason)
        ]
        found += _differences(self.status, state.status, "status")
        if self.pods is not None:
            names = (
                {"master-0", *(f"worker-{index}" for index in range(self.pods - 1))} if self.pods else set()
            )
            if not (state.pods.keys() == state.running_pods == names):
                found.append(f"{self.pods} running pods")
        if left := set(self.without) & {*state.pod_uids, *([state.job_uid] if state.job_uid else [])}:
            found.append(f"the objects {sorted(left)} replaced")
        if self.job is not None and self.job != (state.job_uid is not None):
            found.append("a job" if self.job else "no job")
        if self.observed and state.status.get("observedGeneration") != state.generation:
            found.append(f"observedGeneration {state.generation}")
        if self.where is not None and not found and not self.where(state):
            found.append("the requirement `where`")
        return found


def _has_condition(state: RunState, kind: str, reason: str | None) -> bool:
    condition = state.conditions.get(kind)
    if condition is None or reason is None:
        return condition is None and reason is None
    return bool(condition["reason"] == reason and condition["observedGeneration"] == state.generation)


def _differences(expected: Mapping[str, Any], actual: Any, path: str) -> list[str]:
    found = []
    for name, value in expected.items():
        there = actual.get(name) if isinstance(actual, Mapping) else None
        if isinstance(value, Mapping):
            found += _differences(value, there or {}, f"{path}.{name}")
        elif there != value:
            found.append(f"{path}.{name} {value!r}")
    return found


def _by_place(pods: list[Object], name: str) -> dict[str, Object]:
    """Pods by their place in the gang; one that another pod has replaced there is `replaced <pod>`."""
    found: dict[str, Object] = {}
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp")), reverse=True):
        place = stable_name(pod).removeprefix(f"{name}-")
        found[f"replaced {pod['metadata']['name']}" if place in found else place] = pod
    return found


def _find_job(api: Api, kind: str, namespace: str, name: str) -> Object | None:
    """The job with its pod templates, as far as they exist."""
    job, backend = api.find(kind, namespace, name), backend_of_kind(kind)
    if job is None or backend.TEMPLATE_PLURAL is None:
        return job
    source = api.find(trainjob.RUNTIME_KIND, namespace, name)
    return job if source is None else backend.with_templates(job, source)


def read_run(api: Api, namespace: str, name: str, kind: str = PYTORCHJOB) -> RunState | None:
    """The state of a run with this kind of job.

    None where it has no recipe, where the recipe changed during the read, and while the API server is
    unavailable.
    """
    try:
        recipe = api.find("MegatronRecipe", namespace, name)
        if recipe is None:
            return None
        job = _find_job(api, kind, namespace, name)
        label = backend_of_kind(kind).LABEL_JOB_NAME
        pods = api.list("Pod", namespace, labelSelector=f"{label}={name}")
        again = api.find("MegatronRecipe", namespace, name)
    except HTTPError:
        return None
    except ApiError as error:
        if error.status == 429 or error.status >= 500:
            return None
        raise
    if again is None or again["metadata"]["resourceVersion"] != recipe["metadata"]["resourceVersion"]:
        return None
    return RunState(recipe, job, _by_place(pods, name))


def wait_for_run(
    api: Api,
    namespace: str,
    name: str,
    expected: Expected,
    seconds: float = DEADLINE,
    kind: str = PYTORCHJOB,
) -> RunState:
    """The first state of a run in which everything that is expected holds at once.

    Raises TimeoutError with what is missing, the recipe's status, its Events and its pods.
    """
    last: list[RunState] = []

    def reached() -> RunState | None:
        state = read_run(api, namespace, name, kind)
        if state is None:
            return None
        last[:] = [state]
        return None if expected.missing_in(state) else state

    def describe() -> str:
        if not last:
            return f"recipe {name} in namespace {namespace} to exist"
        missing = "; ".join(expected.missing_in(last[0]))
        return f"{name}: {missing}\n{describe_run(api, namespace, last[0])}"

    return wait_until(describe, reached, seconds)


def describe_run(api: Api, namespace: str, state: RunState) -> str:
    """Several lines: status, conditions, job, pods, and the namespace's Events."""
    shown = {name: part for name, part in state.status.items() if name not in ("conditions", "plan")}
    if isinstance(shown.get("checkpoint"), dict):
        shown["checkpoint"] = {k: v for k, v in shown["checkpoint"].items() if k != "contract"}
    lines = [f"generation {state.generation}, status: {shown}"]
    lines += [
        f"condition {c['type']}={c['status']} {c['reason']}: {c['message']}"
        f" (generation {c['observedGeneration']})"
        for c in state.conditions.values()
    ]
    lines.append(f"job: {state.job['metadata']['uid'] if state.job else None}, {state.replicas} replicas")
    for name, pod in state.pods.items():
        ending = " Terminating" if "deletionTimestamp" in pod["metadata"] else ""
        node = pod["spec"].get("nodeName")
        lines.append(f"pod {name} {pod['metadata']['uid']} {pod['status'].get('phase')}{ending} on {node}")
    try:
        events = api.list("Event", namespace)
    except (ApiError, HTTPError) as error:
        return "\n".join([*lines, f"the Events could not be read: {error}"])
    lines += [
        f"Event {e['type']} {e['reason']} {e['involvedObject']['name']}: {e['message']}" for e in events[-30:]
    ]
    return "\n".join(lines)
