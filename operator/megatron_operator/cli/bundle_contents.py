"""What a support bundle has: objects without credentials, logs, and a list of what could not be read."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any, Final

from megatron_operator.api import yaml_documents
from megatron_operator.api.labels import KIND, LABEL_RECIPE, LABEL_ROLE
from megatron_operator.api.times import seconds
from megatron_operator.cli.errors import CommandError
from megatron_operator.cli.first_failure import first_failed_pod
from megatron_operator.cli.kubectl import TRAINER, Kubectl, Object, own_pods
from megatron_operator.lifecycle.object_metadata import event_time, owned_by
from megatron_operator.manifests.job_backends import backend_of_kind, node_rank
from megatron_operator.manifests.metadata import object_name

REDACTED: Final = "<redacted>"
_CREDENTIAL: Final = re.compile(
    r"(?i)(api|access|account|private|storage|wandb)[-_]?key|passw(or)?d|passphrase|(^|[-_])pass$|[-_]pwd$"
    r"|credential|authorization|token$|secret(?!name|ref|keyref|s$)|(?-i:_(SECRETS|TOKENS)$)"
)
"""Names of variables and flags whose values are replaced."""
_VALUE: Final = r"""('[^']*'|"[^"]*"|((?i:bearer|basic|token)\s+)?[^\s'"&;|]+)"""
_ASSIGNMENTS: Final = (
    re.compile(rf"(?<![\w.-])(-{{0,2}}[A-Za-z_][\w-]{{0,99}})(=){_VALUE}"),
    re.compile(rf"(?<![\w.-])(--[A-Za-z][\w-]{{0,99}})(\s+)(?!-){_VALUE}"),
)
"""A variable or a flag with its value, also within a command of a shell: `NAME=x`, `--name=x`, `--name x`."""
_USER: Final = re.compile(r"(?<=://)[^/@\s]+:[^/@\s]+(?=@)")
"""User and password of a URL."""
_ANNOTATION: Final = "kubectl.kubernetes.io/last-applied-configuration"
"""It repeats the whole object."""
_LOG_LINE: Final = re.compile(r"\d{4}-\d\d-\d\d ")
"""How a record of the operator's log begins; the lines of a traceback do not."""
_MAX_NODES: Final = 64
_BENEATH: Final = (
    "jobsets.jobset.x-k8s.io",
    "workloads.kueue.x-k8s.io",
    "podgroups.scheduling.k8s.io",
    "podgroups.scheduling.x-k8s.io",
    "podgroups.scheduling.volcano.sh",
)
"""Kinds that decide when a run gets nodes and pods. Others create them, mostly without the recipe's label; an
owner comes before what it owns."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to collect."""

    name: str
    operator_namespace: str
    tail: int
    """Last lines of each log."""
    pods: int
    """Pods whose logs are read, at most."""


@dataclass(slots=True)
class Contents:
    """Texts by path in the archive, and why something is not among them."""

    files: dict[str, str] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)

    def add(self, path: str, read: Callable[[], Any]) -> Any:
        """Read something into a file: text as it is, objects as YAML. None where it cannot be read."""
        try:
            found = read()
        except CommandError as error:
            self.unread[path] = error.errors[0].message
            return None
        if found not in ("", []):
            self.files[path] = found if isinstance(found, str) else _yaml(found)
        return found


def collect(kubectl: Kubectl, request: Request) -> Contents:
    """Everything of a run that the kubeconfig may read.

    Raises CommandError if the recipe cannot be read; all else that cannot is listed in `unread`.
    """
    contents = Contents()
    recipe = kubectl.recipe(request.name)
    contents.files["recipe.yaml"] = _yaml(recipe)
    contents.add("versions.yaml", lambda: {"megatron": version("megatron-operator")} | kubectl.version())
    selector = ["--selector", f"{LABEL_RECIPE}={request.name}"]
    recorded = (recipe.get("status") or {}).get("job") or {}
    backend = backend_of_kind(recorded.get("kind"))
    plurals = [each for each in (backend.PLURAL, backend.TEMPLATE_PLURAL) if each is not None]
    jobs = [f"{plural}.{backend.GROUP}" for plural in plurals]
    objects = [recipe]
    for kind in (*jobs, "jobs.batch", "persistentvolumeclaims"):
        objects += contents.add(f"{kind.split('.')[0]}.yaml", partial(kubectl.find, [kind, *selector])) or []
    for kind in _BENEATH:
        if kind not in jobs:
            objects += contents.add(f"{kind}.yaml", partial(_owned_by_any, kubectl, kind, objects)) or []
    pods = contents.add("pods.yaml", lambda: kubectl.find(["pods", *selector])) or []
    contents.add("events.yaml", lambda: _events_of_run(kubectl, recipe, [*objects, *pods]))
    _add_nodes(contents, kubectl, pods)
    _add_logs(contents, kubectl, request, recipe, pods)
    _add_operator(contents, kubectl, request, recipe["metadata"])
    if contents.unread:
        contents.files["unread.yaml"] = _yaml(contents.unread)
    return contents


def redacted(value: Any) -> Any:
    """A copy without what looks like a credential, managedFields, and the copy of the last applied object."""
    if isinstance(value, list):
        return [
            REDACTED if isinstance(each, str) and _is_secret_flag(before) else redacted(each)
            for before, each in zip(["", *value], value, strict=False)
        ]
    if isinstance(value, str):
        flag, separator, _ = value.partition("=")
        hidden = f"{flag}={REDACTED}" if separator and _is_secret_flag(flag) else value
        for pattern in _ASSIGNMENTS:
            hidden = pattern.sub(_without_value, hidden)
        return _USER.sub(REDACTED, hidden)
    if not isinstance(value, Mapping):
        return value
    if isinstance(value.get("name"), str) and isinstance(value.get("value"), str):
        # A variable of a container, or of a recipe.
        hidden = REDACTED if _CREDENTIAL.search(value["name"]) else redacted(value["value"])
        return dict(value) | {"value": hidden}
    return {
        key: _hidden(each) if _CREDENTIAL.search(str(key)) else redacted(each)
        for key, each in value.items()
        if key not in ("managedFields", _ANNOTATION)
    }


def _hidden(value: Any) -> Any:
    """The value of a credential; an object, which may be a reference to one, is searched."""
    if isinstance(value, list):
        return [_hidden(each) for each in value]
    return REDACTED if isinstance(value, str) else redacted(value)


def _without_value(assignment: re.Match[str]) -> str:
    """An assignment as it is, or without its value if its name looks like a credential's."""
    return f"{assignment[1]}{assignment[2]}{REDACTED}" if _CREDENTIAL.search(assignment[1]) else assignment[0]


def readable_files(config_map: Mapping[str, Any]) -> Object:
    """A ConfigMap with its files as objects, in which credentials can be found; one that is not YAML is left
    out."""
    files: dict[str, Any] = {}
    for name, text in (config_map.get("data") or {}).items():
        try:
            files[name] = yaml_documents.load_all(text)
        except yaml_documents.YamlError as error:
            files[name] = f"left out: {error}"
    return dict(config_map) | {"data": files}


def _is_secret_flag(text: Any) -> bool:
    return isinstance(text, str) and text.startswith("--") and bool(_CREDENTIAL.search(text))


def lines_about(log: str, key: str) -> str:
    """The records of the operator's log that name a run, with their tracebacks: others' are not passed on."""
    kept, keeping = [], False
    for line in log.splitlines():
        if _LOG_LINE.match(line):
            keeping = re.search(rf"(?<![\w.-]){re.escape(key)}(?![\w.-])", line) is not None
        if keeping:
            kept.append(line)
    return "".join(f"{line}\n" for line in kept)


def _yaml(value: Any) -> str:
    return yaml_documents.dump(redacted(value))


def _events_of_run(kubectl: Kubectl, recipe: Object, objects: Sequence[Object]) -> list[Object]:
    """Events of the objects of a run, and of those that are gone.

    Those have a name of this run, not of another recipe's, and an Event since the recipe was created.
    Raises CommandError.
    """
    metadata = recipe["metadata"]
    uids = {each["metadata"]["uid"] for each in objects}
    created = seconds(metadata["creationTimestamp"]) or 0.0
    own = object_name(metadata["name"])
    names = {own, *(object_name(each["metadata"]["name"]) for each in kubectl.recipes())}

    def is_of_run(event: Object) -> bool:
        involved = event["involvedObject"]
        if involved.get("uid") in uids:
            return True
        if involved.get("kind") == KIND or (seconds(event_time(event)) or 0.0) < created:
            return False
        name = f"{involved.get('name', '')}-"
        return max((each for each in names if name.startswith(f"{each}-")), key=len, default="") == own

    return [event for event in kubectl.find(["events"]) if is_of_run(event)]


def _owned_by_any(kubectl: Kubectl, kind: str, owners: Sequence[Object]) -> list[Object]:
    """Objects of the namespace that one of these owns. Raises CommandError."""
    uids = {each["metadata"]["uid"] for each in owners}
    return [each for each in kubectl.find([kind]) if any(owned_by(each, uid) for uid in uids)]


def _add_nodes(contents: Contents, kubectl: Kubectl, pods: Sequence[Object]) -> None:
    names = sorted({pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")})
    if names:
        contents.add("nodes.yaml", lambda: kubectl.find(["nodes", *names[:_MAX_NODES]]))
    if len(names) > _MAX_NODES:
        contents.unread["nodes.yaml"] = f"{len(names) - _MAX_NODES} nodes left out: {names[_MAX_NODES]} ..."


def _add_logs(
    contents: Contents, kubectl: Kubectl, request: Request, recipe: Object, pods: Sequence[Object]
) -> None:
    """Logs of all containers, of the pod that failed first before all others, and of earlier instances."""
    failed = first_failed_pod(recipe, own_pods(recipe, _trainers(pods)))
    first = "" if failed is None else failed.pod
    ordered = sorted(pods, key=lambda pod: (pod["metadata"]["name"] != first, pod["metadata"]["name"]))
    for pod in ordered[: request.pods]:
        name = pod["metadata"]["name"]
        read = [name, "--all-containers", "--prefix", f"--tail={request.tail}"]
        contents.add(f"logs/{name}.log", partial(kubectl.log_text, read))
        if any(each.get("restartCount") for each in (pod.get("status") or {}).get("containerStatuses") or ()):
            contents.add(f"logs/{name}.previous.log", partial(kubectl.log_text, [*read, "--previous"]))
    if left := ordered[request.pods :]:
        contents.unread["logs"] = (
            f"{len(left)} pods left out, raise --pods: {left[0]['metadata']['name']} ..."
        )


def _trainers(pods: Sequence[Object]) -> list[Object]:
    """The pods of a training job, by rank; not those that prepare data."""
    found = [pod for pod in pods if (pod["metadata"].get("labels") or {}).get(LABEL_ROLE) == TRAINER]
    return sorted(found, key=node_rank)


def _add_operator(contents: Contents, kubectl: Kubectl, request: Request, metadata: Object) -> None:
    """The operator's Deployment, pods and configuration, and what its logs have about this run."""
    there = Kubectl(request.operator_namespace, kubectl.context, kubectl.kubeconfig)
    label = "app.kubernetes.io/name=megatron-operator"
    contents.add("operator/deployments.yaml", partial(there.find, ["deployments", "--selector", label]))
    contents.add(
        "operator/configmaps.yaml",
        lambda: [readable_files(each) for each in there.find(["configmaps", "--selector", label])],
    )
    pods = contents.add("operator/pods.yaml", partial(there.find, ["pods", "--selector", label])) or []
    # The log is of all runs: its last lines may have none of this one.
    created = metadata["creationTimestamp"]
    key, since = f"{metadata['namespace']}/{request.name}", ["--tail=-1", f"--since-time={created}"]
    logs = {"operator/log.log": ["--selector", label, "--all-containers", *since]}
    for pod in pods:
        for container in (pod.get("status") or {}).get("containerStatuses") or ():
            if container.get("restartCount"):
                name = pod["metadata"]["name"]
                one = [name, "--container", container["name"], "--previous", *since]
                logs[f"operator/{name}.{container['name']}.previous.log"] = one
    for path, words in logs.items():
        read = partial(_records_about, there, words, key, request.tail)
        if contents.add(path, read) == "":
            contents.unread[path] = f"the log that is kept has no record about {key} since {created}"


def _records_about(there: Kubectl, words: Sequence[str], key: str, tail: int) -> str:
    """The last lines of a log of the operator about a run. Raises CommandError."""
    return "".join(lines_about(there.log_text(words), key).splitlines(keepends=True)[-tail:])
