"""A batch Job without accelerators: pods that use the run's volumes before or after the training."""

from dataclasses import dataclass

from megatron_contract.environment import CHECKPOINT_DIR, DATA_DIR

from megatron_operator.api.labels import ANNOTATION_PLACEMENT
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.manifests import kueue
from megatron_operator.manifests.job_backend import LABEL_QUEUE
from megatron_operator.manifests.metadata import Manifest, Owner, digest, with_hash
from megatron_operator.manifests.pod import identity, image
from megatron_operator.manifests.security import CONTAINER_SECURITY, POD_SECURITY

RETRIES = 2
_PATHS = {"data": DATA_DIR, "checkpoints": CHECKPOINT_DIR}


@dataclass(frozen=True, slots=True)
class Work:
    """What the container of a Job runs."""

    role: str
    """Value of the role label of the Job's pods, and the end of the Job's name."""
    container: str
    command: str
    arguments: list[str]
    resources: Manifest
    final: list[int]
    """Exit codes that a retry cannot fix: the Job fails at once."""
    claims: dict[str, str]
    """`data`, `checkpoints` -> claim to mount at /data, /checkpoints."""
    environment: dict[str, str]
    secret_environment: tuple[Manifest, ...] = ()
    """Entries of the container's `env` with values of Secrets."""
    image: str | None = None
    """Another image than the trainer's."""
    read_only: frozenset[str] = frozenset()
    """Those of `claims` that are mounted read-only."""
    pods: int = 1
    """Above 1, pods share the work by their index."""


def job(owner: Owner, resolved: ResolvedRecipe, work: Work) -> Manifest:
    """The Job, with its hash. Raises InvalidRecipeError if there is no trainer image.

    With a Kueue queue it is created suspended, and Kueue resumes it. The hash depends neither on the queue
    nor on the nodes that the platform names: data that is prepared stays so.
    """
    mounts: list[Manifest] = [
        {"name": name, "mountPath": _PATHS[name]} | ({"readOnly": True} if name in work.read_only else {})
        for name in work.claims
    ]
    volumes: list[Manifest] = [
        {"name": name, "persistentVolumeClaim": {"claimName": claim}} for name, claim in work.claims.items()
    ]
    mounts.insert(1, {"name": "tmp", "mountPath": "/tmp"})
    volumes.insert(1, {"name": "tmp", "emptyDir": {}})
    environment: list[Manifest] = [
        *({"name": name, "value": value} for name, value in work.environment.items()),
        *work.secret_environment,
    ]
    spec: Manifest = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "securityContext": POD_SECURITY,
        "containers": [
            {
                "name": work.container,
                "image": work.image or image(resolved),
                "command": [work.command],
                "args": work.arguments,
                "env": environment,
                "resources": work.resources,
                "securityContext": CONTAINER_SECURITY,
                # The log may have values of Secrets, and the message enters the status.
                "terminationMessagePolicy": "File" if work.secret_environment else "FallbackToLogsOnError",
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
    }
    spec |= identity(resolved)
    manifest: Manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": owner.metadata(f"{owner.object_name}-{work.role}"),
        "spec": {
            "backoffLimit": RETRIES * work.pods,
            **_division(work.pods),
            "podFailurePolicy": {"rules": _failure_rules(work)},
            "template": {"metadata": {"labels": owner.labels(work.role)}, "spec": spec},
        },
    }
    return _queued(_placed(with_hash(manifest), resolved), resolved)


def placement(job: Manifest) -> str | None:
    """Digest of where the platform has the pods of a Job run; None where it sets nothing.

    The Job's template is not compared: Kueue adds labels and tolerations of its flavors.
    """
    value = (job["metadata"].get("annotations") or {}).get(ANNOTATION_PLACEMENT)
    return None if value is None else str(value)


def _placed(job: Manifest, resolved: ResolvedRecipe) -> Manifest:
    jobs = resolved.cpu_jobs
    fields = {} if jobs is None else {name: value for name, value in jobs.wire().items() if value}
    fields.pop("maxIndexMemory", None)
    if not fields:
        return job
    metadata, template = job["metadata"], job["spec"]["template"]
    annotations = metadata["annotations"] | {ANNOTATION_PLACEMENT: digest(fields)}
    pods = template | {"spec": template["spec"] | fields}
    return job | {
        "metadata": metadata | {"annotations": annotations},
        "spec": job["spec"] | {"template": pods},
    }


def _queued(job: Manifest, resolved: ResolvedRecipe) -> Manifest:
    queue = resolved.scheduling.queue
    made = job | {"metadata": dict(job["metadata"])}
    kueue.annotate_queue(made, resolved)
    if queue is None:
        return made
    made["metadata"]["labels"] = made["metadata"]["labels"] | {LABEL_QUEUE: queue}
    kueue.set_priority_class(made, resolved)
    return made | {"spec": job["spec"] | {"suspend": True}}


def _division(pods: int) -> Manifest:
    if pods == 1:
        return {}
    return {"completions": pods, "parallelism": pods, "completionMode": "Indexed"}


def _failure_rules(work: Work) -> list[Manifest]:
    """A pod that was drained, preempted or evicted is replaced, and not counted as a retry."""
    codes = {"containerName": work.container, "operator": "In", "values": work.final}
    return [
        {"action": "FailJob", "onExitCodes": codes},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
