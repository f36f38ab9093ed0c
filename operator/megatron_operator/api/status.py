"""`MegatronRecipe.status`: the observed state of a run. `plan` is the planner's result, unchanged."""

from typing import Annotated, Any

from pydantic import Field

from megatron_operator.api.accepted_spec import AcceptedSpec
from megatron_operator.api.base import ApiModel
from megatron_operator.api.communication_status import GroupCommunication
from megatron_operator.api.ledger_status import TimeLedger
from megatron_operator.api.memory_status import MeasuredMemory
from megatron_operator.api.recovery_status import RecoveryStatus


class MemoryPerGpu(ApiModel):
    """Estimated bytes on the fullest GPU."""

    weights: int
    """Weights that the layers compute with, with their FP8 copies."""
    gradients: int
    """The gradient buffer."""
    optimizer: int
    """Main weights and states of the optimizer."""
    activations: int
    """The most that a step keeps besides: activations, or copies that the optimizer makes."""
    other: int
    """CUDA context, communicators and communication buffers; 0 for `cpu`."""
    total: int
    """The sum of those above."""
    capacity: int | None = None
    """Memory of the accelerator in bytes; none for `cpu`."""


class Expected(ApiModel):
    """Estimated speed."""

    step_seconds: float
    """Seconds of one iteration."""
    tokens_per_second_per_gpu: float
    """Tokens of the batch by second and accelerator."""
    tokens_per_second_per_gpu_low: float | None = None
    """With the high one, where nine of ten measured runs of this kind would be."""
    tokens_per_second_per_gpu_high: float | None = None
    """The upper end of that range."""
    tflops_per_gpu: float
    """Model TFLOP/s of one accelerator: without those of recomputation."""
    mfu: float
    """Model FLOPs utilization: fraction of the accelerator's peak in the precision of the training."""
    bubble: float
    """Fraction of a step that pipeline stages wait."""

    @property
    def peak_tflops(self) -> float | None:
        """Peak of one accelerator to which `mfu` is relative, in TFLOP/s; None where the plan has none."""
        return self.tflops_per_gpu / self.mfu if self.mfu > 0 and self.tflops_per_gpu > 0 else None


class Plan(ApiModel):
    """How the run is mapped to its accelerators. World = TP x PP x CP x DP; EP is a part of TP x CP x DP."""

    engine: str | None = None
    """`megatron`, Megatron Core's own loop, or `bridge`; not set in statuses of version 0.2 and before."""
    world_size: int
    """Accelerators in use, one rank each."""
    nodes: int
    """Number of pods; those that use all accelerators of a node have it to themselves."""
    per_node: int
    """Ranks and accelerators of one pod."""
    tensor_model_parallel_size: int
    """TP: ranks that share each layer."""
    pipeline_model_parallel_size: int
    """PP: stages, ranks with different layers."""
    virtual_pipeline_model_parallel_size: int | None = None
    """Virtual stages of each pipeline rank; none without interleaving."""
    context_parallel_size: int
    """CP: ranks that share each sequence."""
    expert_model_parallel_size: int
    """EP: ranks with different experts."""
    expert_tensor_parallel_size: int
    """ETP: ranks that share each expert."""
    data_parallel_size: int
    """DP: ranks with different samples."""
    expert_data_parallel_size: int
    """Ranks with the same experts."""
    sequence_parallel: bool
    """Whether TP ranks split norms and dropout by the sequence too."""
    decoder_first_pipeline_num_layers: int | None = None
    """Layers of the first stage where it differs from those between."""
    decoder_last_pipeline_num_layers: int | None = None
    """The same of the last stage."""
    account_for_embedding_in_pipeline_split: bool = False
    """Whether the embedding counts as a layer of the first stage."""
    account_for_loss_in_pipeline_split: bool = False
    """Whether the loss counts as a layer of the last stage."""
    pipeline_model_parallel_layout: str | None = None
    """The layers of each stage in Megatron's form, where the layout needs it."""
    stage_layers: list[int]
    """Transformer layers of each pipeline stage."""
    use_distributed_optimizer: bool
    """Whether each data-parallel rank holds a part of the optimizer's states."""
    use_megatron_fsdp: bool | None = None
    """Whether it holds a part of the weights and gradients alone too (Megatron FSDP)."""
    overlap_grad_reduce: bool
    """Whether gradients are reduced during the backward pass."""
    overlap_param_gather: bool
    """Whether updated weights are gathered during the forward pass."""
    recompute_granularity: str | None = None
    """`full`: whole layers are recomputed; `selective`: parts of them; none: nothing."""
    recompute_method: str | None = None
    """`uniform` or `block`, where whole layers are recomputed."""
    recompute_num_layers: int | None = None
    """Layers of a block of `uniform`, or of a stage that `block` recomputes."""
    recompute_modules: list[str] | None = None
    """The parts that are recomputed with `selective`."""
    micro_batch_size: int
    """Samples of one forward pass of a data-parallel rank."""
    global_batch_size: int
    """The final one, with a batch ramp-up."""
    gradient_accumulation: int
    """Micro batches per iteration of one data-parallel rank."""
    train_iters: int | None = None
    """Iterations of the whole run."""
    train_samples: int | None = None
    """Samples of the whole run, where the recipe counts by them."""
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
    communication: Annotated[list[GroupCommunication], Field(max_length=8)] | None = None
    """What crosses which level of the network, by kind of group; none where the speed is not estimated."""
    price_per_gpu_hour: float | None = None
    """Price of an accelerator and hour on this platform, in its currency: for all hours of the run."""
    notes: list[str] = Field(default_factory=list)
    """What was chosen or changed, and why."""


class Progress(ApiModel):
    """Progress that the pods report."""

    iteration: int | None = None
    """The last complete iteration."""
    train_iters: int | None = None
    """Iterations of the whole run."""
    lm_loss: float | None = None
    """Training loss of that iteration."""
    learning_rate: float | None = None
    """Learning rate of that iteration."""
    step_seconds: float | None = None
    """Seconds of that iteration."""
    tokens_per_second: float | None = None
    """Tokens of the batch by second, of the whole run."""
    tflops_per_gpu: float | None = None
    """TFLOP/s of one accelerator, by Megatron's formula."""
    eta: str | None = None
    """Expected time of the last iteration, RFC 3339."""
    display: str | None = None
    """`iteration/trainIters`, for the printer column."""
    generation: int | None = None
    """How often the ranks were restarted, as the pods count."""
    time: str | None = None
    """When the iteration last changed, RFC 3339."""


class Evaluation(ApiModel):
    """An evaluation of the validation data."""

    iteration: int
    """Iteration after which it was done."""
    loss: float
    """Mean loss of the validation data."""


class ValidationStatus(ApiModel):
    """Evaluations of the validation data (`training.evalInterval`) that the pods report."""

    iteration: int
    """Iteration of the last one."""
    loss: float
    """Mean loss of the last one."""
    best_iteration: int | None = None
    """Iteration of the one with the lowest loss."""
    best_loss: float | None = None
    """That loss."""
    evaluations: Annotated[list[Evaluation], Field(max_length=40)] | None = None
    """Oldest first; of more than 40, some over the whole run, with the lowest and the last."""


class PreparationStatus(ApiModel):
    """Progress of the data preparation, over all of its pods."""

    documents: int
    """Documents in complete shards."""
    bytes_done: int
    """Bytes of the sources that have been read, as they are on the volume."""
    bytes_total: int
    """Bytes of the sources."""
    bytes_per_second: float | None = None
    """Bytes of the sources that are read by second, by all pods."""
    eta: str | None = None
    """Expected end, RFC 3339."""


class ConversionProgressStatus(ApiModel):
    """Progress of an import or export of weights."""

    step: str
    """`download`: files of a hub; `convert`: tensors are written; `audit`: source and result are compared."""
    tensors_done: int
    """Tensors that this step has written, or read for the audit."""
    tensors_total: int
    """Of this step. An audit reads each tensor two or three times, and counts each time; a download none."""
    bytes_done: int
    """Bytes that this step has downloaded, written or read."""
    bytes_total: int
    """Bytes of all of this step."""


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
    model: str | None = None
    """Hash of the model's arguments that an import compared with config.json; none with engine `bridge`."""
    base: str | None = None
    """Folder whose configuration and tokenizer an export has; not set for an import."""
    iteration: int | None = None
    """Iteration of the checkpoint that was exported."""
    validation_loss: float | None = None
    """Its validation loss, where that was evaluated."""
    revision: str | None = None
    """Commit of the hub's model that was imported."""


class CheckpointStatus(ApiModel):
    """The newest complete checkpoint that the pods report, and the best where that one is kept."""

    iteration: int | None = None
    """Iteration after which the newest was saved."""
    time: str | None = None
    """When the newest was complete, RFC 3339."""
    best_iteration: int | None = None
    """Iteration of the one with the lowest validation loss, where `keepBest` keeps it."""
    best_loss: float | None = None
    """The validation loss of that one."""
    contract: dict[str, str] | None = None
    """Settings that must not change for the checkpoint to load: model shape, tokenizer, number formats."""


class JobStatus(ApiModel):
    """The training job of this recipe."""

    name: str
    """Name of the job, in the recipe's namespace."""
    uid: str = ""
    """UID of the job."""
    kind: str | None = None
    """Kind of the job; not set: PyTorchJob."""
    hash: str
    """Hash of the rendered job; a different hash means that the spec changed."""


class RunWarning(ApiModel):
    """A problem that does not stop the run yet."""

    reason: str
    """What the problem is, in CamelCase: `CheckpointVolumeLow`."""
    message: str
    """The problem with its numbers."""


class Straggler(ApiModel):
    """A rank whose own work takes longer than that of its peers, so that all others wait for it."""

    rank: int
    """Global rank."""
    pod: str | None = None
    """Its pod, without the job's name: `worker-3`."""
    node: str | None = None
    """Node of that pod."""
    iteration: int
    """Since which iteration."""
    slowdown: float
    """Its own time over that of the other ranks of its pipeline stage, when it was named."""
    own_seconds: float
    """Time of an iteration without its waits for other ranks."""
    peer_seconds: float
    """The same of its peers."""
    since: str
    """When it was named, RFC 3339."""
    until: str | None = None
    """When it was no longer slow, or no longer ran; none while it is slow."""


class RecipeCondition(ApiModel):
    """A standard Kubernetes condition."""

    type: str
    """What the condition is about: `Running`."""
    status: str
    """`True`, `False` or `Unknown`."""
    reason: str
    """Why, as one of the reasons that the operator documents."""
    message: str
    """Details for people."""
    last_transition_time: str
    """When `status` last changed, RFC 3339."""
    observed_generation: int | None = None
    """Generation of the spec to which the condition applies."""


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
    accepted: AcceptedSpec | None = None
    job: JobStatus | None = None
    validation: ValidationStatus | None = None
    memory: MeasuredMemory | None = None
    """Measured memory of the accelerators; not set for a run on CPUs, and before its first iteration."""
    preparation: PreparationStatus | None = None
    """Only while data are prepared, packed or checked."""
    conversion: ConversionProgressStatus | None = None
    """Only while weights are imported or exported."""
    imported: ConversionStatus | None = None
    """The complete import of `init.from.huggingFace`."""
    exported: ConversionStatus | None = None
    """The complete export of the newest checkpoint of what the run's job has trained."""
    exported_best: ConversionStatus | None = None
    """That of the checkpoint with the lowest validation loss (`export.when` `best`)."""
    prepared: str | None = None
    """Digest of the data that are prepared or checked; `unchecked` where the recipe leaves none to check."""
    ledger: TimeLedger | None = None
    """Where the time of the run went."""
    warnings: list[RunWarning] = Field(default_factory=list)
    """Current warnings of the pods, such as a checkpoint volume that fills up."""
    stragglers: list[Straggler] | None = None
    """Slow ranks, newest last, at most 20; those with `until` are no longer slow."""
    omitted: list[str] | None = None
    """Parts of this status that were left out or cut, because it would be too large."""
    conditions: list[RecipeCondition] = Field(default_factory=list)
    """The state in detail; `Ready` summarizes it."""

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
