"""`MegatronRecipe.spec`: one object is one training run."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from megatron_operator.api import duration
from megatron_operator.api.base import ApiModel
from megatron_operator.api.bounds import (
    LARGEST_SETTING,
    LONGEST_TEXT,
    Accelerators,
    Count,
    Grace,
    Iterations,
    Name,
    PerNode,
    Rank,
    Samples,
    Text,
    Weight,
)
from megatron_operator.api.duration import Duration
from megatron_operator.api.fine_tuning import ExportSpec, FrozenParts, InitSpec, PeftSpec
from megatron_operator.api.model import ModelSpec
from megatron_operator.api.pod_environment import EnvFromSource, EnvVarSource
from megatron_operator.api.tracking import TrackingSpec
from megatron_operator.api.training import ParallelismSpec, TrainingSpec

QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?(m|[kMGTPE]|[KMGTPE]i)?$"
RELATIVE_PATTERN = r"^[^/].*$"
_SHARE = r"([0-9]+(\.[0-9]*)?|\.[0-9]+)"
SPLIT_PATTERN = rf"^{_SHARE}(\s*,\s*{_SHARE}){{2}}$"
ENDPOINT_PATTERN = r"^https?://[A-Za-z0-9._:\[\]-]+(/[A-Za-z0-9._/-]*)?$"
REGION_PATTERN = r"^[a-z0-9-]+$"
DATASET_PATTERN = r"^[A-Za-z0-9_.-]+$"

Quantity = Annotated[str, Field(pattern=QUANTITY_PATTERN, max_length=32)]
"""A Kubernetes quantity (`2Ti`)."""
RelativePath = Annotated[Text, Field(min_length=1, pattern=RELATIVE_PATTERN)]
Image = Annotated[str, Field(max_length=500)]
LabelKey = Annotated[str, Field(max_length=317)]
LabelValue = Annotated[str, Field(max_length=63)]
EnvValue = Annotated[str, Field(max_length=32768)]
FlagValues = Annotated[list[Text | int | float], Field(max_length=LONGEST_TEXT)]
MegatronArgs = Annotated[dict[str, Text | int | float | bool | FlagValues], Field(max_length=1024)]


class AcceleratorSpec(ApiModel):
    """Type and number of accelerators."""

    type: Name | None = None
    """A profile of the platform (`h100-sxm`, `cpu`, ...); default the platform's only or default profile."""
    count: Accelerators
    """Accelerators of the whole run: the world size."""
    per_node: PerNode | None = None
    """Accelerators of one pod; default the profile's. Pods with fewer than a node has may share one."""


class VolumeSpec(ApiModel):
    """An existing claim (`claimName`) or a new one (`size`)."""

    claim_name: Name | None = None
    """An existing PersistentVolumeClaim of this namespace."""
    size: Quantity | None = None
    """Size of a claim that the operator creates."""
    storage_class_name: Name | None = None
    """Storage class of the new claim; default the platform's."""
    access_mode: Literal["ReadWriteMany", "ReadWriteOnce"] | None = None
    """Access mode of the new claim; default ReadWriteMany, ReadWriteOnce for a single pod."""


class TokenizerSpec(ApiModel):
    """Tokenizer, in Megatron's setting names."""

    tokenizer_type: Name | None = None
    """Megatron's tokenizer type (`HuggingFaceTokenizer`, `SentencePieceTokenizer`, `NullTokenizer`, ...)."""
    tokenizer_model: Text | None = None
    """Path in the pod or hub name of the tokenizer; a file for SentencePieceTokenizer and TikTokenizer."""
    vocab_file: Text | None = None
    """Vocabulary of GPT2BPETokenizer."""
    merge_file: Text | None = None
    """Merges of GPT2BPETokenizer."""


class BlendPart(ApiModel):
    """One dataset of the mix."""

    path: RelativePath
    """Prefix of the `.bin`/`.idx` pair, relative to the data volume."""
    weight: Weight = 1.0
    """Share in the mix; need not add up to 1."""
    validation: bool | None = None
    """Only evaluate on it; `weight` is its share in each evaluation. All else is for training then."""


class SourceSpec(ApiModel):
    """Documents to tokenize before the first start."""

    path: Annotated[Text, Field(min_length=1)]
    """File or pattern (`**` crosses folders), for `hf` the folder, as the pod sees it; or `s3://bucket/pattern`."""
    format: Literal["jsonl", "chat", "text", "parquet", "hf", "webdataset"] | None = None
    """`jsonl`, `chat` and `text` may be compressed: `.gz`, `.zst`. Default by the suffix of `path`:
    `.parquet`; `.txt` (`text`); `.tar` (`webdataset`); `.jsonl` with `key`, or to fine-tune (`chat`)."""
    key: Annotated[Name, Field(min_length=1)] | None = None
    """`jsonl`: name of the text in each object; default `text`."""
    column: Annotated[Name, Field(min_length=1)] | None = None
    """`parquet` and `hf`: column of the text; default `text`."""
    documents: Samples | None = None
    """Take only the first documents; default all."""
    weight: Weight = 1.0
    """Share in the mix; need not add up to 1. To fine-tune, if all are 1, an epoch has each sample once."""
    validation: bool | None = None
    """Only evaluate on it; `weight` is its share in each evaluation. All else is for training then."""


class ObjectStorageSpec(ApiModel):
    """Store of the `s3://` paths in `data.sources`; only the preparing pods read it."""

    secret_name: Annotated[Name, Field(min_length=1)] | None = None
    """Secret with `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and, for temporary ones, `AWS_SESSION_TOKEN`.

    Default the role of the pods' service account or node.
    """
    endpoint_url: Annotated[str, Field(pattern=ENDPOINT_PATTERN, max_length=512)] | None = None
    """URL of another store with the S3 protocol, such as MinIO; default AWS."""
    region: Annotated[str, Field(pattern=REGION_PATTERN, max_length=64)] | None = None
    """Region of the buckets; default the store's."""


class PrepareResources(ApiModel):
    """Requests of each pod that prepares; default by what it does (docs/data.md)."""

    cpu: Quantity | None = None
    """Processors; documents are tokenized by all that the node has idle, whatever is requested. Default 1."""
    memory: Quantity | None = None
    """More than the default where documents are longer than about 2 MiB."""


class PrepareSpec(ApiModel):
    """How text is tokenized before the first start, in a separate Job."""

    source: Annotated[Text, Field(min_length=1)] | None = None
    """Directory of text, as the pod sees it; instead of `data.sources`."""
    include: Annotated[Text, Field(min_length=1)] | None = None
    """Glob below `source`; default `**/*.txt`."""
    name: Annotated[Name, Field(pattern=DATASET_PATTERN)] = "corpus"
    """The dataset becomes `<name>_text_document` on the data volume; with `data.sources` its name begins with
    `prepared/<name>-`, and a digest of what it is made of follows."""
    workers: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Pods that prepare `data.sources`; default 1."""
    tokenizer_vocab_size: Annotated[int, Field(ge=257, le=10_000_000)] | None = None
    """Size of the byte-level BPE that is trained at /data/tokenizer if there is none; default 32,000.

    Only without `data.tokenizer`: a tokenizer that is named is used, never replaced.
    """
    object_storage: ObjectStorageSpec | None = None
    """Store of the sources with `s3://` paths."""
    append_eod: bool = True
    """End every document with the end-of-document token."""
    resources: PrepareResources | None = None


class DataSpec(ApiModel):
    """Data source."""

    volume: VolumeSpec | None = None
    """Volume at /data; read-only in trainers."""
    tokenizer: TokenizerSpec | None = None
    """Tokenizer; paths below /data."""
    blend: Annotated[list[BlendPart], Field(max_length=1024)] | None = None
    """Datasets and their weights."""
    sources: Annotated[list[SourceSpec], Field(min_length=1, max_length=256)] | None = None
    """Documents and their weights, which are prepared first; to fine-tune, also chats, or images and text."""
    dataset_root: RelativePath | None = None
    """Folder with `training.jsonl` and `validation.jsonl`, relative to the data volume; to fine-tune. Of a
    diffusion model: with tar files of latents."""
    examples: Literal["questionAndAnswer", "chat"] | None = None
    """Lines of `datasetRoot`: `input` and `output` (default), or chats. The loss is that of the answers."""
    packing: bool | None = None
    """Samples of `datasetRoot`, or chats and documents of `sources`, share sequences of `seqLength`;
    attention keeps them apart."""
    max_epochs: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """How often a run may read a document of `sources` (default 1) or of `blend` (any number), or a line of
    `datasetRoot` (any number); with `packing` a packed sequence. Above it the preparation, the check or
    the run fails."""
    check: bool | None = None
    """`false`: a run on `blend` or `datasetRoot` starts without the Job that checks them and builds the index
    of the samples."""
    split: Annotated[str, Field(pattern=SPLIT_PATTERN, max_length=64)] | None = None
    """Train, validation and test shares (`99,1,0`); without datasets of `validation` alone."""
    mock_data: bool | None = None
    """Random tokens instead of a dataset, for trials."""
    dataloader_type: Literal["single", "cyclic"] | None = None
    """One pass in order, or random order that wraps around."""
    num_workers: Annotated[int, Field(ge=0, le=1024)] | None = None
    """Loader processes per rank."""
    prepare: PrepareSpec | None = None
    """Build dataset and tokenizer from text first."""


class LocalCheckpointSpec(ApiModel):
    """Frequent checkpoints on the node's disk. They survive a rank restart, but not the loss of the pod."""

    size_limit: Quantity
    """Size limit; it must fit two checkpoints."""
    save_interval: Iterations
    """Iterations between two local checkpoints."""


class CheckpointSpec(ApiModel):
    """Where and when checkpoints are saved."""

    volume: VolumeSpec | None = None
    """Volume at /checkpoints; default one of the platform's size and class."""
    save_interval: Iterations | None = None
    """Iterations between two checkpoints."""
    keep: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Number of newest complete checkpoints to keep; default all."""
    keep_best: bool | None = None
    """Also keep the complete checkpoint with the lowest validation loss; default only for `export.when`
    `best`. A checkpoint counts with the evaluation of its iteration."""
    async_save: bool | None = None
    """Save asynchronously while training continues; default above 64 GPUs."""
    no_save_optim: bool | None = None
    """Leave the optimizer states out of checkpoints: a resume has the weights and the place in the schedule,
    but new moments."""
    no_save_rng: bool | None = None
    """Leave the random states out of checkpoints: with dropout a resume draws other random numbers."""
    local: LocalCheckpointSpec | None = None
    """A faster tier in front of the volume, for runs of one pod."""
    retain_on_delete: bool = True
    """Keep the claim that the operator created when the recipe is deleted."""


class ElasticSpec(ApiModel):
    """Continue on fewer accelerators when the full count is not available."""

    min_count: Accelerators
    """Smallest number of accelerators to run on."""
    shrink_after: Duration = 600
    """How long pods may be unschedulable before the run shrinks: `10m`, or a number of seconds."""
    grow_after: Duration = 300
    """How long more accelerators must be free before the run grows: `5m`, or a number of seconds."""


class LossSpec(ApiModel):
    """Handling of abnormal losses. A loss that is not finite is always a failure."""

    spike_factor: Annotated[float, Field(gt=1, le=LARGEST_SETTING)] | None = None
    """A loss above this multiple of the median of the last `spikeWindow` is a failure; default never."""
    spike_window: Annotated[int, Field(ge=2, le=100_000)] = 50
    """Number of losses in that median."""
    on_repeat: Literal["fail", "skip"] = "fail"
    """An iteration fails again after a resume from an older checkpoint: end the run, or skip its batches."""


class NodesSpec(ApiModel):
    """Handling of nodes whose hardware fails."""

    avoid_after: Count = 2
    """Losses of one node after which the run's next pods avoid it; on other evidence of failed hardware they
    avoid it at once. 0 disables both."""


class RecoverySpec(ApiModel):
    """How failures are handled, and how often."""

    max_restarts: Count = 10
    """Restarts without a new checkpoint before the run fails; drains, preemptions and resizes are free."""
    max_rank_restarts: Count = 3
    """Restarts of ranks inside their pods before a pod is replaced."""
    hang_timeout: Annotated[
        str,
        Field(pattern=duration.WORD_PATTERN, max_length=duration.LONGEST_TEXT),
        AfterValidator(duration.seconds_or_word),
    ] = "auto"
    """Longest time of a training step: `auto` (3 of the run's own step times and 75 s), `off`, or `10m`."""
    rendezvous_timeout: Duration = 600
    """How long pods wait for each other before all of them are re-created: `10m`, or a number of seconds."""
    termination_grace_period_seconds: Grace | None = None
    """Seconds from SIGTERM to SIGKILL for a last checkpoint; default by its size, at least 300 on GPUs."""
    preflight: bool = False
    """Check the devices of each new pod, and pairs of nodes, before any rank starts; takes seconds."""
    loss: LossSpec = LossSpec()
    """Handling of abnormal losses."""
    nodes: NodesSpec = NodesSpec()
    """Handling of bad nodes."""
    elastic: ElasticSpec | None = None
    """Shrink and grow with the available accelerators."""


class ProfileSpec(ApiModel):
    """Iterations that torch's profiler records; they take longer than others."""

    start: Iterations
    """First iteration that is recorded, 10 or later to leave out the slow first ones."""
    end: Iterations
    """Last iteration that is recorded."""
    ranks: Annotated[list[Rank], Field(min_length=1, max_length=64)] = Field(default_factory=lambda: [0])
    """Ranks that are recorded, default rank 0, each into a file of its own in `profile` beside the
    checkpoints: `rank-0-iterations-100-104.json.gz`."""


class SchedulingSpec(ApiModel):
    """Pod placement."""

    queue: Name | None = None
    """Kueue local queue; default the platform's."""
    workload_priority_class_name: Name | None = None
    """Kueue's WorkloadPriorityClass of the run in its queue; default the platform's. Without one Kueue takes
    the priority from `priorityClassName`."""
    priority_class_name: Name | None = None
    """PriorityClass of the pods that train."""
    topology: Annotated[list[LabelKey], Field(max_length=16)] | None = None
    """Node labels, nearest first, that all pods should share; default the profile's."""
    required_topology: LabelKey | None = None
    """The one of `topology` that all pods must share: they are placed in one domain of it, such as a rack, or
    wait; default the profile's."""
    node_selector: Annotated[dict[str, LabelValue], Field(max_length=64)] | None = None
    """Additional node labels that the pods that train require."""


class MegatronRecipeSpec(ApiModel):
    """Desired state of a run. Fields that are not set come from the catalog, the platform or the planner."""

    recipe: Name | None = None
    """Name of a catalog entry; or set `model` and `training` in full."""
    model: ModelSpec | None = None
    """Architecture; overrides the catalog's."""
    training: TrainingSpec | None = None
    """Hyperparameters; override the catalog's."""
    parallelism: ParallelismSpec | None = None
    """Layout; sizes that are set are kept, the others are planned."""
    init: InitSpec | None = None
    """What a run starts from instead of random weights."""
    peft: PeftSpec | None = None
    """Adapters of a recipe of mode `lora`."""
    freeze: FrozenParts | None = None
    """Parts of a vision-language model that keep their weights; the others are trained. Default those of its
    function. For recipes on images and text that train no adapters."""
    export: ExportSpec | None = None
    """Weights for others, written once the run has succeeded."""
    accelerator: AcceleratorSpec
    """Type and number of accelerators."""
    data: DataSpec | None = None
    """Data source."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """Where and when checkpoints are saved."""
    recovery: RecoverySpec = RecoverySpec()
    """How failures are handled, and how often."""
    profile: ProfileSpec | None = None
    """Iterations that torch's profiler records."""
    tracking: TrackingSpec | None = None
    """Where the curves of the run are recorded: TensorBoard, Weights & Biases, MLflow."""
    scheduling: SchedulingSpec = SchedulingSpec()
    """Pod placement."""
    image: Image | None = None
    """Trainer image; default the platform's for the accelerator."""
    image_pull_secrets: Annotated[list[Name], Field(max_length=64)] | None = None
    """Names of secrets for pulling the image."""
    env: Annotated[dict[str, EnvValue], Field(max_length=256)] | None = None
    """Additional environment variables of trainer pods."""
    env_value_from: Annotated[dict[str, EnvVarSource], Field(max_length=256)] | None = None
    """Environment variables of trainer pods whose values are in Secrets, ConfigMaps or fields of the pod."""
    env_from: Annotated[list[EnvFromSource], Field(max_length=32)] | None = None
    """Secrets and ConfigMaps whose keys become variables of trainer pods; `env` overrides them."""
    service_account_name: Annotated[Name, Field(min_length=1)] | None = None
    """Service account of all pods, one that the platform allows; pods get no token of it."""
    suspend: bool = False
    """Release the accelerators and keep everything else; false resumes from the newest checkpoint."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=100_000_000)] | None = None
    """Seconds after the end of the run until its job and pods, with their logs, are deleted; default never.

    So are complete Jobs that import, prepare, check or export. The recipe, its status and its volumes stay.
    """
    megatron_args: MegatronArgs | None = None
    """Any Megatron flag that has no field here, without its dashes: `log-throughput: true`."""
