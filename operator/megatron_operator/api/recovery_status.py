"""`MegatronRecipe.status.recovery`: interruptions of a run, what they cost, and nodes that it avoids."""

from pydantic import Field

from megatron_operator.api.base import ApiModel


class LostSeconds(ApiModel):
    """Seconds from the last step before a failure to the first new iteration after it, by phase."""

    detect: float | None = None
    """From the last step until the failure was detected."""
    schedule: float | None = None
    """From then until all pods had a node."""
    start: float | None = None
    """From then until all pods completed the rendezvous: image, imports."""
    load: float | None = None
    """From then until the first step: process groups, model, checkpoint."""
    redo: float | None = None
    """From then until the first new iteration."""


class RestartsByKind(ApiModel):
    """Number of interruptions by kind."""

    rank: int = 0
    """A rank exited and its pod stayed."""
    pod: int = 0
    """A pod was lost, evicted or drained."""
    node: int = 0
    """A node was lost."""
    gang: int = 0
    """The operator re-created all pods."""
    hang: int = 0
    """No iteration completed; detected by the trainer."""
    loss: int = 0
    """The loss was not finite, or a spike."""
    resize: int = 0
    """The run was resized to another number of accelerators."""
    maintenance: int | None = None
    """The run moved off nodes before their planned maintenance; not set before the first move."""


class Incident(ApiModel):
    """One interruption of the training."""

    number: int
    """1 for the run's first."""
    time: str
    """When it was detected, RFC 3339."""
    kind: str
    """A field of restartsByKind."""
    cause: str
    """What failed, from exit code, signal and messages."""
    pod: str | None = None
    """Pod where it began, without the job's name: `worker-3`."""
    node: str | None = None
    """Node of that pod."""
    rank: int | None = None
    """Global rank that failed or was behind."""
    exit_code: int | None = None
    """Exit code of the rank or container that failed."""
    iteration: int | None = None
    """Last completed iteration before it."""
    resumed_from: int | None = None
    """Iteration of the checkpoint that was loaded; 0 for none."""
    lost_iterations: int | None = None
    """Iterations that were repeated."""
    seconds: LostSeconds = LostSeconds()
    recovered_at: str | None = None
    """First step after it, RFC 3339; shared with an incident that followed before recovery."""
    generation: int | None = None
    """The pods' count of starts since this incident."""
    hang: bool | None = None
    """True for a hang that the operator found: it re-created all pods because no iteration completed, or no
    pod answered."""


class ElasticStatus(ApiModel):
    """The run uses fewer accelerators than requested."""

    count: int
    """Accelerators in use."""
    since: str
    """RFC 3339."""
    reason: str
    """Why fewer are used."""
    larger: int | None = None
    """Larger number of accelerators that could be used now."""
    larger_since: str | None = None
    """Since when they have been free, RFC 3339."""


class NodeEvidence(ApiModel):
    """Why a node is held to be faulty."""

    evidence: str
    """`DeviceMemory`, `DeviceLink`, `DeviceLost`, `DeviceXid`, `Preflight`, `NodeCondition`, `NodeTaint`,
    `NodeLost`."""
    cause: str
    """What was seen."""
    time: str
    """When it was first seen, RFC 3339."""
    shared: bool = False
    """Other nodes had the same at the same time: it follows the run and is counted against no node."""
    avoided_at: str | None = None
    """Since when new pods avoid the node, RFC 3339."""
    released_at: str | None = None
    """When the run used the node again because it had no other, RFC 3339; what the node reports counts again
    an hour later."""
    not_avoided: str | None = None
    """Why the run uses the node all the same: a cap of the platform, or too few other nodes."""


class NodeMaintenance(ApiModel):
    """A node of the run whose planned maintenance was announced."""

    sign: str
    """The condition, taint, label or annotation that announces it; of a device, with the device and the
    DeviceTaintRule."""
    time: str
    """When it was first seen, RFC 3339."""
    starts_at: str | None = None
    """When it starts, RFC 3339, where the node has that."""
    leave_at: str | None = None
    """From when on the run moves, RFC 3339: early enough to save before the start. Not set: at once."""
    avoided_at: str | None = None
    """When the run began to avoid the node because of it, RFC 3339; it does so once for each announcement."""
    precaution: bool | None = None
    """True where the run has had no pod on the node and avoids it for its next pods alone: such a node does
    not count for `badNodes.maxShare`."""
    not_avoided: str | None = None
    """Why the run stays on the node: a cap of the platform, or too few other nodes."""


class EndedPod(ApiModel):
    """How a pod ended that the operator deletes."""

    cause: str
    """Why it ended."""
    exit_code: int | None = None
    """Exit code of its container."""
    checkpoint_iteration: int | None = None
    """Newest checkpoint that the pod reported at its end."""
    rank: int | None = None
    """Global rank that failed."""
    node: str | None = None
    """Node that it ran on."""
    disruption: str | None = None
    """Reason of the pod's condition DisruptionTarget, or `Deleted`; not set where it ended by itself."""
    evidence: str | None = None
    """That the hardware of its node failed, as in nodeEvidence."""


class RecoveryStatus(ApiModel):
    """Interruptions of the run and what they cost."""

    restarts: int = 0
    """Restarts of any kind: replaced pods and re-created gangs."""
    restarts_by_kind: RestartsByKind = RestartsByKind()
    restarts_since_checkpoint: int = 0
    """Restarts since the newest checkpoint; compared with maxRestarts."""
    rank_restarts: int = 0
    """Interruptions after which ranks started again inside their pods: `rank`, `hang` and `loss` of
    restartsByKind."""
    first_cause: str | None = None
    """Cause of the first restart since the newest checkpoint."""
    last_cause: str | None = None
    """Cause of the last interruption."""
    last_incident: Incident | None = None
    """The newest of `history`."""
    history: list[Incident] = Field(default_factory=list)
    """Newest last, at most 20."""
    lost_iterations: int = 0
    """Iterations that were repeated."""
    lost_seconds: LostSeconds = LostSeconds()
    """Sums over all incidents."""
    goodput: float | None = None
    """Step time of the iterations that count, divided by wall time since the run's first start."""
    node_failures: dict[str, int] = Field(default_factory=dict)
    """Failures of the run by node that the node's hardware caused: an application's errors do not count."""
    node_evidence: dict[str, NodeEvidence] = Field(default_factory=dict)
    """The evidence of failed hardware by node."""
    maintenance: dict[str, NodeMaintenance] = Field(default_factory=dict)
    """Announced maintenance by node, of the run's nodes and those that it avoids for it."""
    nodes_avoided: list[str] = Field(default_factory=list)
    """Nodes that new pods avoid."""
    elastic: ElasticStatus | None = None
    """Set only while the run uses fewer accelerators than requested."""
    last_resize_time: str | None = None
    """When the run was last resized, RFC 3339."""
    waiting_since: str | None = None
    """Since when pods are unschedulable, RFC 3339."""
    checkpoint_iteration: int | None = None
    """Newest checkpoint at the last restart; a newer one resets restartsSinceCheckpoint."""
    last_restart_time: str | None = None
    """When the last restart was counted, RFC 3339."""
    pods_as_of: str | None = None
    """Creation time of the newest pod that was counted; a newer pod is a replacement."""
    gang: str | None = None
    """Hash of all pods of the gang; detects a replacement created within the same second."""
    placement: str | None = None
    """Digests of the names of the gang's nodes, six digits for each pod; confirm what Events report."""
    ended_pods: dict[str, EndedPod] = Field(default_factory=dict)
    """How pods ended that the operator deletes, until they are replaced: by pod, as in history; at most 8."""
    restart_before: str | None = None
    """Pods of the gang created up to this time are to be deleted."""
    outgoing_job: str | None = None
    """UID of the job that is to be deleted because the run is resized."""
