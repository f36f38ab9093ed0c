"""`MegatronRecipe.status`: what is reported back. `plan` is the planner's answer, word for word."""

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
    """Memory of the accelerator; none for `cpu`."""


class Expected(ApiModel):
    """Estimated speed."""

    step_seconds: float
    tokens_per_second_per_gpu: float
    tflops_per_gpu: float
    mfu: float
    bubble: float
    """Part of a step that pipeline stages wait."""


class Plan(ApiModel):
    """How the run lies on its accelerators. World = TP x PP x CP x DP; experts lie inside TP x CP x DP."""

    world_size: int
    nodes: int
    """Pods: one a node."""
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
    """The largest one, under a ramp-up."""
    gradient_accumulation: int
    """Micro batches of one data-parallel rank in one iteration."""
    train_iters: int | None = None
    """Iterations of the whole run; none where a batch ramp-up makes them vary."""
    train_samples: int | None = None
    parameters: int | None = None
    """Exact and unpadded, as model cards count; none for a model that is not modelled (engine `bridge`)."""
    parameters_padded: int | None = None
    """With the vocabulary padded as this layout does."""
    active_parameters: int | None = None
    """Parameters that one token meets (MoE)."""
    flops_per_token: int | None = None
    """Forward and backward, as Megatron counts."""
    memory_per_gpu: MemoryPerGpu | None = None
    expected: Expected | None = None
    notes: list[str] = Field(default_factory=list)
    """What was chosen or changed, and why."""


class Progress(ApiModel):
    """How far the run is, as its pods tell."""

    iteration: int | None = None
    train_iters: int | None = None
    lm_loss: float | None = None
    learning_rate: float | None = None
    step_seconds: float | None = None
    tokens_per_second: float | None = None
    tflops_per_gpu: float | None = None
    eta: str | None = None
    """When the last iteration is expected, RFC 3339."""
    display: str | None = None
    """`iteration/trainIters`, for the printer column."""
    generation: int | None = None
    """The pods' count of how often the ranks were started anew."""
    time: str | None = None
    """When the iteration was last seen to move, RFC 3339."""


class CheckpointStatus(ApiModel):
    """The newest checkpoint that pods report as whole."""

    iteration: int | None = None
    time: str | None = None
    contract: dict[str, str] | None = None
    """What a later start must not change to be able to load it: model shape, tokenizer, number formats."""


class LostSeconds(ApiModel):
    """Seconds from the last step before a failure to the first iteration that had not been reached yet."""

    detect: float | None = None
    """From the last step until the failure was noticed."""
    schedule: float | None = None
    """From then until all pods had a node."""
    start: float | None = None
    """From then until all pods had met at the rendezvous: image, imports."""
    load: float | None = None
    """From then until the first step: process groups, model, checkpoint."""
    redo: float | None = None
    """From then until the first iteration beyond the one reached before."""


class RestartsByKind(ApiModel):
    """How often the run was interrupted, by what."""

    rank: int = 0
    """A rank died and its pod stayed."""
    pod: int = 0
    """A pod was lost, evicted or drained."""
    node: int = 0
    """A node was lost."""
    gang: int = 0
    """All pods were started anew by the operator."""
    hang: int = 0
    """Iterations stopped, as the trainer saw it."""
    loss: int = 0
    """The loss was not finite, or a spike."""
    resize: int = 0
    """The run was laid out on another count of accelerators."""


class Incident(ApiModel):
    """One interruption of the training."""

    number: int
    """1 for the run's first."""
    time: str
    """When it was noticed, RFC 3339."""
    kind: str
    """A field of restartsByKind."""
    cause: str
    pod: str | None = None
    """Where it began, without the job's name: `worker-3`."""
    node: str | None = None
    rank: int | None = None
    """Global rank that died or was behind."""
    exit_code: int | None = None
    iteration: int | None = None
    """Last one that was done before."""
    resumed_from: int | None = None
    """Iteration of the checkpoint that was loaded; 0 for none."""
    lost_iterations: int | None = None
    """Iterations that were done again."""
    seconds: LostSeconds = LostSeconds()
    recovered_at: str | None = None
    """First step after it, RFC 3339; the same for those that the next incident cut short."""
    generation: int | None = None
    """The pods' count of starts, from this incident on."""


class ElasticStatus(ApiModel):
    """The run is laid out on fewer accelerators than it asks for."""

    count: int
    """Accelerators that it is laid out on."""
    since: str
    """RFC 3339."""
    reason: str
    larger: int | None = None
    """More accelerators that are free now and can be used."""
    larger_since: str | None = None
    """Since when, RFC 3339."""


class RecoveryStatus(ApiModel):
    """What the run has survived."""

    restarts: int = 0
    """Restarts of any kind: pods replaced and gangs started anew."""
    restarts_by_kind: RestartsByKind = RestartsByKind()
    restarts_since_checkpoint: int = 0
    """Restarts that brought no new checkpoint: they count against maxRestarts."""
    rank_restarts: int = 0
    """Restarts of ranks inside pods that stayed."""
    first_cause: str | None = None
    """Of the first restart since the newest checkpoint."""
    last_cause: str | None = None
    last_incident: Incident | None = None
    history: list[Incident] = Field(default_factory=list)
    """Newest last, at most 20."""
    lost_iterations: int = 0
    """Iterations that were done again."""
    lost_seconds: LostSeconds = LostSeconds()
    """Over all incidents."""
    goodput: float | None = None
    """Step time of the iterations that were kept, over wall time since the run's first start."""
    node_failures: dict[str, int] = Field(default_factory=dict)
    """How often the run failed on a node."""
    nodes_avoided: list[str] = Field(default_factory=list)
    """Nodes that pods made from now on avoid."""
    elastic: ElasticStatus | None = None
    """Only while the run is laid out on fewer accelerators than it asks for."""
    last_resize_time: str | None = None
    waiting_since: str | None = None
    """Since when pods cannot be placed, RFC 3339."""
    checkpoint_iteration: int | None = None
    """Newest checkpoint at the last restart; a newer one gives the budget back."""
    last_restart_time: str | None = None
    pods_as_of: str | None = None
    """Creation of the youngest pod that was taken notice of; a younger one replaces a pod."""
    gang: str | None = None
    """Hash of the whole gang's pods: tells a replacement made within the same second."""
    restart_before: str | None = None
    """Pods of the gang that were created until then are to be deleted."""
    outgoing_job: str | None = None
    """UID of the job that is to be deleted because the run is laid out on another count."""


class JobStatus(ApiModel):
    """The training job that was made for this recipe."""

    name: str
    uid: str = ""
    hash: str
    """Of what was wanted; an equal one needs no other job."""


class RunWarning(ApiModel):
    """Something that does not stop the run yet."""

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
    """What is reported back. Written by the operator alone; all that it must remember is here."""

    phase: str | None = None
    """Where the run is, in one word."""
    observed_generation: int | None = None
    """The generation of the spec that this status speaks of."""
    plan: Plan | None = None
    progress: Progress | None = None
    checkpoint: CheckpointStatus | None = None
    recovery: RecoveryStatus | None = None
    job: JobStatus | None = None
    prepared: str | None = None
    """Hash of the preparation that is done."""
    warnings: list[RunWarning] = Field(default_factory=list)
    """What pods warn of now: a checkpoint volume that fills up, a slow rank."""
    conditions: list[RecipeCondition] = Field(default_factory=list)

    def wire(self) -> dict[str, object]:
        """As it is applied: without empty maps.

        Server-side apply makes null of a map that had entries and is applied as {}, and the API server
        refuses that null.
        """
        said: dict[str, object] = _without_empty_maps(super().wire())
        return said


def _without_empty_maps(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_empty_maps(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {key: _without_empty_maps(each) for key, each in value.items()}
    return {key: each for key, each in kept.items() if each != {}}
