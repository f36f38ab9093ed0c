"""`MegatronRecipe.spec`: one object is one training run."""

from typing import Annotated, Literal

from pydantic import Field

from megatron_operator.api.base import ApiModel
from megatron_operator.api.model import ModelSpec, Positive
from megatron_operator.api.training import ParallelismSpec, TrainingSpec

QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?(m|[kMGTPE]|[KMGTPE]i)?$"
RELATIVE_PATTERN = r"^[^/].*$"
HANG_PATTERN = r"^(auto|off|[1-9][0-9]*s)$"
SPLIT_PATTERN = r"^[0-9.]+(\s*,\s*[0-9.]+){2}$"
DATASET_PATTERN = r"^[A-Za-z0-9_.-]+$"

Quantity = Annotated[str, Field(pattern=QUANTITY_PATTERN)]
"""A Kubernetes quantity (`2Ti`)."""
Seconds = Annotated[int, Field(ge=1)]
RelativePath = Annotated[str, Field(min_length=1, pattern=RELATIVE_PATTERN)]


class AcceleratorSpec(ApiModel):
    """How many of which accelerator."""

    type: str | None = None
    """A profile of the platform (`h100-sxm`, `cpu`, ...); default the platform's only or default profile."""
    count: Positive
    """Accelerators of the whole run: the world size."""
    per_node: Positive | None = None
    """Accelerators of one pod, which is one node; default the profile's."""


class VolumeSpec(ApiModel):
    """A claim that exists (`claimName`) or one to be made (`size`)."""

    claim_name: str | None = None
    """An existing PersistentVolumeClaim of this namespace."""
    size: Quantity | None = None
    """Make a claim of this size."""
    storage_class_name: str | None = None
    """Storage class of the claim to be made; default the platform's."""
    access_mode: Literal["ReadWriteMany", "ReadWriteOnce"] | None = None
    """Access mode of the claim to be made; default ReadWriteMany, ReadWriteOnce for a single pod."""


class TokenizerSpec(ApiModel):
    """Tokenizer, in Megatron's setting names."""

    tokenizer_type: str | None = None
    """Megatron's tokenizer type (`HuggingFaceTokenizer`, `SentencePieceTokenizer`, `NullTokenizer`, ...)."""
    tokenizer_model: str | None = None
    """Path in the pod or hub name of the tokenizer."""
    vocab_file: str | None = None
    """Vocabulary of GPT2BPETokenizer."""
    merge_file: str | None = None
    """Merges of GPT2BPETokenizer."""


class BlendPart(ApiModel):
    """One dataset of the mix."""

    path: RelativePath
    """Prefix of the `.bin`/`.idx` pair, relative to the data volume."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Share in the mix; need not add up to 1."""


class PrepareSpec(ApiModel):
    """Text to be tokenized before the first start, by a Job of its own."""

    source: Annotated[str, Field(min_length=1)]
    """Directory of text, as the pod sees it."""
    include: Annotated[str, Field(min_length=1)] = "**/*.txt"
    """Glob below `source`."""
    name: Annotated[str, Field(pattern=DATASET_PATTERN)] = "corpus"
    """The dataset becomes `<name>_text_document` on the data volume."""
    tokenizer_vocab_size: Annotated[int, Field(ge=257)] = 32000
    """Size of the byte-level BPE that is trained when the data volume has no tokenizer yet."""
    append_eod: bool = True
    """End every document with the end-of-document token."""


class DataSpec(ApiModel):
    """Where the data lies."""

    volume: VolumeSpec | None = None
    """Volume at /data; read-only in trainers."""
    tokenizer: TokenizerSpec | None = None
    """Tokenizer; paths below /data."""
    blend: list[BlendPart] | None = None
    """Datasets and their weights."""
    split: Annotated[str, Field(pattern=SPLIT_PATTERN)] | None = None
    """Train, validation and test shares (`99,1,0`)."""
    mock_data: bool | None = None
    """Random tokens instead of data, for trying things out."""
    dataloader_type: Literal["single", "cyclic"] | None = None
    """One pass in order, or random order that wraps around."""
    num_workers: Annotated[int, Field(ge=0)] | None = None
    """Loader processes per rank."""
    prepare: PrepareSpec | None = None
    """Make dataset and tokenizer from text first."""


class LocalCheckpointSpec(ApiModel):
    """Checkpoints on the node's disk, more often than on the volume. They outlive ranks, not the pod."""

    size_limit: Quantity
    """Room for two checkpoints."""
    save_interval: Positive
    """Iterations between two of them."""


class CheckpointSpec(ApiModel):
    """Where and when checkpoints are saved."""

    volume: VolumeSpec | None = None
    """Volume at /checkpoints; default one of the platform's size and class."""
    save_interval: Positive | None = None
    """Iterations between two checkpoints."""
    keep: Positive | None = None
    """Newest whole checkpoints that are kept; default all."""
    async_save: bool | None = None
    """Write behind the training."""
    local: LocalCheckpointSpec | None = None
    """A faster tier before the volume, for runs of one pod."""
    retain_on_delete: bool = True
    """Keep the claim that the operator made when the recipe is deleted."""


class ElasticSpec(ApiModel):
    """Go on with fewer accelerators when the full count cannot be had."""

    min_count: Positive
    """Fewest accelerators worth running on."""
    shrink_after: Seconds = 600
    """Seconds of waiting for pods to be placed before the run is laid out on fewer."""
    grow_after: Seconds = 300
    """Seconds that more accelerators must have been free before the run is laid out on them."""


class LossSpec(ApiModel):
    """What is done about the loss. A loss that is not finite is always a failure."""

    spike_factor: Annotated[float, Field(gt=1)] | None = None
    """A loss above this multiple of the median of the last `spikeWindow` is a failure; default never."""
    spike_window: Annotated[int, Field(ge=2)] = 50
    """Losses of which the median is taken."""
    on_repeat: Literal["fail", "skip"] = "fail"
    """An iteration fails again after a resume from an older checkpoint: end the run, or skip its batches."""


class NodesSpec(ApiModel):
    """What is done about nodes on which the run fails again and again."""

    avoid_after: Annotated[int, Field(ge=0)] = 2
    """Failures of the run on one node after which its next pods avoid that node; 0 never."""


class RecoverySpec(ApiModel):
    """What the run survives, and how often."""

    max_restarts: Annotated[int, Field(ge=0)] = 10
    """Restarts without a new checkpoint before the run fails. Draining, preemption and resizing cost none."""
    max_rank_restarts: Annotated[int, Field(ge=0)] = 3
    """Restarts of ranks inside their pods before a pod is given up."""
    hang_timeout: Annotated[str, Field(pattern=HANG_PATTERN)] = "auto"
    """Longest silence between iterations: `auto` (a multiple of the run's own step time), `off`, `600s`."""
    rendezvous_timeout: Seconds = 600
    """Seconds that pods wait for each other before the whole gang is started anew."""
    preflight: bool = False
    """Check every pod by a matrix product and a collective, in seconds, before its first step."""
    loss: LossSpec = LossSpec()
    """What is done about the loss."""
    nodes: NodesSpec = NodesSpec()
    """What is done about bad nodes."""
    elastic: ElasticSpec | None = None
    """Shrink and grow with what is there."""


class SchedulingSpec(ApiModel):
    """How pods are placed."""

    queue: str | None = None
    """Kueue local queue; default the platform's."""
    priority_class_name: str | None = None
    """PriorityClass of all pods."""
    topology: list[str] | None = None
    """Node labels from near to far within which all pods should lie; default the profile's."""
    node_selector: dict[str, str] | None = None
    """Further node labels that pods need."""


class MegatronRecipeSpec(ApiModel):
    """What a user asks for. Everything not said comes from the catalog, the platform or the planner."""

    recipe: str | None = None
    """Name of a catalog entry; or give `model` and `training` in full."""
    model: ModelSpec | None = None
    """Architecture; overrides the catalog's."""
    training: TrainingSpec | None = None
    """Hyperparameters; override the catalog's."""
    parallelism: ParallelismSpec | None = None
    """Layout; what is set is kept, the rest is planned."""
    accelerator: AcceleratorSpec
    """How many of which accelerator."""
    data: DataSpec | None = None
    """Where the data lies."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """Where and when checkpoints are saved."""
    recovery: RecoverySpec = RecoverySpec()
    """What the run survives, and how often."""
    scheduling: SchedulingSpec = SchedulingSpec()
    """How pods are placed."""
    image: str | None = None
    """Trainer image; default the platform's for the accelerator."""
    image_pull_secrets: list[str] | None = None
    """Names of secrets for pulling the image."""
    env: dict[str, str] | None = None
    """Further environment of trainer pods."""
    suspend: bool = False
    """Release the accelerators, keep everything else; false goes on from the newest checkpoint."""
    megatron_args: dict[str, str | int | float | bool | list[str | int | float]] | None = None
    """Any Megatron flag that is not typed here, without its dashes: `log-throughput: true`."""
