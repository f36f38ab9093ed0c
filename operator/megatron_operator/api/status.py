"""`MegatronRecipe.status`: the observed state of a run. `plan` is the planner's result, unchanged."""

from typing import Any

from pydantic import Field

from megatron_operator.api.base import ApiModel


class MemoryPerGpu(ApiModel):
    """Estimated bytes on the fullest GPU."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    other: int
    total: int
    capacity: int | None = None
    """Memory of the accelerator in bytes; none for `cpu`."""


class Expected(ApiModel):
    """Estimated speed."""

    step_seconds: float
    tokens_per_second_per_gpu: float
    tokens_per_second_per_gpu_low: float | None = None
    """With the high one, where nine of ten measured runs of this kind would be."""
    tokens_per_second_per_gpu_high: float | None = None
    tflops_per_gpu: float
    mfu: float
    bubble: float
    """Fraction of a step that pipeline stages wait."""


class Plan(ApiModel):
    """How the run is mapped to its accelerators. World = TP x PP x CP x DP; EP is a part of TP x CP x DP."""

    world_size: int
    nodes: int
    """Number of pods; each has a node to itself."""
    per_node: int
    """Ranks and accelerators of one pod."""
    tensor_model_parallel_size: int
    pipeline_model_parallel_size: int
    virtual_pipeline_model_parallel_size: int | None = None
    context_parallel_size: int
    expert_model_parallel_size: int
    expert_tensor_parallel_size: int
    data_parallel_size: int
    expert_data_parallel_size: int
    sequence_parallel: bool
    decoder_first_pipeline_num_layers: int | None = None
    decoder_last_pipeline_num_layers: int | None = None
    account_for_embedding_in_pipeline_split: bool = False
    account_for_loss_in_pipeline_split: bool = False
    pipeline_model_parallel_layout: str | None = None
    stage_layers: list[int]
    """Transformer layers of each pipeline stage."""
    use_distributed_optimizer: bool
    overlap_grad_reduce: bool
    overlap_param_gather: bool
    recompute_granularity: str | None = None
    recompute_method: str | None = None
    recompute_num_layers: int | None = None
    recompute_modules: list[str] | None = None
    micro_batch_size: int
    global_batch_size: int
    """The final one, with a batch ramp-up."""
    gradient_accumulation: int
    """Micro batches per iteration of one data-parallel rank."""
    train_iters: int | None = None
    """Iterations of the whole run; none with a batch ramp-up."""
    train_samples: int | None = None
    parameters: int | None = None
    """Exact and unpadded, as model cards count; none for a recipe of engine `bridge`."""
    parameters_padded: int | None = None
    """What is allocated and saved: the vocabulary padded for this layout, multi-token prediction included."""
    active_parameters: int | None = None
    """Parameters that one token uses (MoE)."""
    flops_per_token: int | None = None
    """FLOPs of forward and backward pass, as Megatron counts them."""
    memory_per_gpu: MemoryPerGpu | None = None
    expected: Expected | None = None
    price_per_gpu_hour: float | None = None
    """Price of an accelerator and hour on this platform, in its currency."""
    notes: list[str] = Field(default_factory=list)
    """What was chosen or changed, and why."""


class Progress(ApiModel):
    """Progress that the pods report."""

    iteration: int | None = None
    train_iters: int | None = None
    lm_loss: float | None = None
    learning_rate: float | None = None
    step_seconds: float | None = None
    tokens_per_second: float | None = None
    tflops_per_gpu: float | None = None
    eta: str | None = None
    """Expected time of the last iteration, RFC 3339."""
    display: str | None = None
    """`iteration/trainIters`, for the printer column."""
    generation: int | None = None
    """How often the ranks were restarted, as the pods count."""
    time: str | None = None
    """When the iteration last changed, RFC 3339."""


class ValidationStatus(ApiModel):
    """Evaluations of the validation data (`training.evalInterval`) that the pods report."""

    iteration: int
    """Iteration of the last one."""
    loss: float
    best_iteration: int | None = None
    """Iteration of the one with the lowest loss."""
    best_loss: float | None = None


class PreparationStatus(ApiModel):
    """Progress of the data preparation, over all of its pods."""

    documents: int
    """Documents in complete shards."""
    bytes_done: int
    """Bytes of the sources that have been read, as they are on the volume."""
    bytes_total: int
    bytes_per_second: float | None = None
    eta: str | None = None
    """Expected end, RFC 3339."""


class ConversionStatus(ApiModel):
    """Weights that were imported or exported, and the audit that compared every tensor."""

    source: str
    """Folder that was read."""
    path: str
    """Folder that was written."""
    tensors: int | None = None
    """Tensors that the audit compared; none where the Job's pod was deleted before it was read."""
    bytes: int | None = None
    """Their size."""
    audit: str
    """File with name, shape, dtype and checksum of every tensor."""


class CheckpointStatus(ApiModel):
    """The newest complete checkpoint that the pods report."""

    iteration: int | None = None
    time: str | None = None
    contract: dict[str, str] | None = None
    """Settings that must not change for the checkpoint to load: model shape, tokenizer, number formats."""


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


class Incident(ApiModel):
    """One interruption of the training."""

    number: int
    """1 for the run's first."""
    time: str
    """When it was detected, RFC 3339."""
    kind: str
    """A field of restartsByKind."""
    cause: str
    pod: str | None = None
    """Pod where it began, without the job's name: `worker-3`."""
    node: str | None = None
    rank: int | None = None
    """Global rank that failed or was behind."""
    exit_code: int | None = None
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


class ElasticStatus(ApiModel):
    """The run uses fewer accelerators than requested."""

    count: int
    """Accelerators in use."""
    since: str
    """RFC 3339."""
    reason: str
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
    time: str
    """When it was first seen, RFC 3339."""
    shared: bool = False
    """Other nodes had the same at the same time: it follows the run and is counted against no node."""
    avoided_at: str | None = None
    """Since when new pods avoid the node, RFC 3339."""
    not_avoided: str | None = None
    """Why the run uses the node all the same: a cap of the platform, or too few other nodes."""


class RecoveryStatus(ApiModel):
    """Interruptions of the run and what they cost."""

    restarts: int = 0
    """Restarts of any kind: replaced pods and re-created gangs."""
    restarts_by_kind: RestartsByKind = RestartsByKind()
    restarts_since_checkpoint: int = 0
    """Restarts since the newest checkpoint; compared with maxRestarts."""
    rank_restarts: int = 0
    """Restarts of ranks inside running pods."""
    first_cause: str | None = None
    """Cause of the first restart since the newest checkpoint."""
    last_cause: str | None = None
    last_incident: Incident | None = None
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
    nodes_avoided: list[str] = Field(default_factory=list)
    """Nodes that new pods avoid."""
    elastic: ElasticStatus | None = None
    """Set only while the run uses fewer accelerators than requested."""
    last_resize_time: str | None = None
    waiting_since: str | None = None
    """Since when pods are unschedulable, RFC 3339."""
    checkpoint_iteration: int | None = None
    """Newest checkpoint at the last restart; a newer one resets restartsSinceCheckpoint."""
    last_restart_time: str | None = None
    pods_as_of: str | None = None
    """Creation time of the newest pod that was counted; a newer pod is a replacement."""
    gang: str | None = None
    """Hash of all pods of the gang; detects a replacement created within the same second."""
    placement: str | None = None
    """Digests of the names of the gang's nodes, six digits for each pod; confirm what Events report."""
    restart_before: str | None = None
    """Pods of the gang created up to this time are to be deleted."""
    outgoing_job: str | None = None
    """UID of the job that is to be deleted because the run is resized."""


class LedgerMark(ApiModel):
    """What the run does from a moment on, until the next mark."""

    time: str
    """RFC 3339."""
    category: str
    cause: str | None = None
    """Reason of the condition Running, or the cause of the incident."""
    node: str | None = None
    accelerators: int = 0
    """Accelerators that the run holds meanwhile."""


class LedgerLoss(ApiModel):
    """Time that was lost to one cause."""

    category: str
    cause: str | None = None
    node: str | None = None
    seconds: float


class TimeLedger(ApiModel):
    """Where the time since the recipe's creation went; `megatron ledger` adds up both parts.

    Categories: queue, prepare, schedule, start, load, train, save, evaluate, redo, detect, hang, idle.
    """

    settled_at: str
    """Up to when the sums below reach, RFC 3339; for a run that is over, its end."""
    seconds: dict[str, float] = Field(default_factory=dict)
    """Seconds by category up to settledAt."""
    accelerator_seconds: dict[str, float] = Field(default_factory=dict)
    """The same times the accelerators that the run held."""
    losses: list[LedgerLoss] = Field(default_factory=list)
    """What is lost of `seconds` by cause and node, largest first, at most 32."""
    marks: list[LedgerMark] = Field(default_factory=list)
    """Changes of state since settledAt, at most 40. Their time is not final: incidents may lie over it."""
    save_seconds: float | None = None
    """Seconds of the whole run in which saves held up the training, as the pods report."""
    evaluate_seconds: float | None = None
    """Seconds of the whole run in evaluations, as the pods report."""


class JobStatus(ApiModel):
    """The training job of this recipe."""

    name: str
    uid: str = ""
    hash: str
    """Hash of the rendered job; a different hash means that the spec changed."""


class RunWarning(ApiModel):
    """A problem that does not stop the run yet."""

    reason: str
    message: str


class RecipeCondition(ApiModel):
    """A standard Kubernetes condition."""

    type: str
    status: str
    reason: str
    message: str
    last_transition_time: str
    observed_generation: int | None = None


class MegatronRecipeStatus(ApiModel):
    """Observed state of a run. Only the operator writes it; it holds the operator's whole state."""

    phase: str | None = None
    """One-word summary."""
    observed_generation: int | None = None
    """Generation of the spec that this status describes."""
    plan: Plan | None = None
    progress: Progress | None = None
    checkpoint: CheckpointStatus | None = None
    recovery: RecoveryStatus | None = None
    job: JobStatus | None = None
    validation: ValidationStatus | None = None
    preparation: PreparationStatus | None = None
    """Only while `data.sources` are prepared."""
    imported: ConversionStatus | None = None
    """The complete import of `init.from.huggingFace`."""
    exported: ConversionStatus | None = None
    """The complete export of what the run's job has trained."""
    prepared: str | None = None
    """Hash of the completed data preparation."""
    ledger: TimeLedger | None = None
    """Where the time of the run went."""
    warnings: list[RunWarning] = Field(default_factory=list)
    """Current warnings of the pods, such as a checkpoint volume that fills up."""
    omitted: list[str] | None = None
    """Parts of this status that were left out or cut, because it would be too large."""
    conditions: list[RecipeCondition] = Field(default_factory=list)

    def wire(self) -> dict[str, object]:
        """The status for a server-side apply, without empty maps.

        Server-side apply turns a map that had entries and is applied as {} into null, which the API server
        then rejects.
        """
        return _without_empty_maps(super().wire())


def _without_empty_maps(fields: dict[str, Any]) -> dict[str, object]:
    # Runs in every reconcile, and most values are scalars: no call for those.
    kept: dict[str, object] = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            if smaller := _without_empty_maps(value):
                kept[name] = smaller
        elif isinstance(value, list):
            kept[name] = [_without_empty_maps(e) if isinstance(e, dict) else e for e in value]
        else:
            kept[name] = value
    return kept
