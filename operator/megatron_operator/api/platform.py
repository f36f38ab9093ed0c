"""The platform file: settings of a cluster that hold for every recipe (`platform.yaml` of a ConfigMap)."""

from typing import Annotated, Final, Literal

from pydantic import Field

from megatron_operator.api.base import ApiModel
from megatron_operator.api.bounds import Accelerators, Name, PerNode, Positive
from megatron_operator.api.duration import Duration
from megatron_operator.api.hardware import canonical
from megatron_operator.api.pod_environment import KeyReference
from megatron_operator.api.pod_template import PodTemplateOverlay
from megatron_operator.api.recipe import ENDPOINT_PATTERN, Image, LabelKey, Quantity


class Toleration(ApiModel):
    """A Kubernetes toleration."""

    key: str | None = None
    operator: Literal["Exists", "Equal"] | None = None
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: int | None = None


class PodResources(ApiModel):
    """Resource requests of a whole-node pod besides its accelerators."""

    cpu: Quantity | None = None
    memory: Quantity | None = None
    """Without /dev/shm, which is added to it."""


DispatcherPackage = Literal["deepep", "hybridep", "ncclep"]
ImagePackage = Literal[DispatcherPackage, "mamba-ssm", "flash-linear-attention", "flash-mla"]


class DataSheet(ApiModel):
    """What the planner computes with. Peaks are dense; bandwidths are 10^9 bytes per second, each way."""

    architecture: Literal["ampere", "ada", "hopper", "blackwell", "blackwell-ultra"] | None = None
    """The generation that it is like; default none: without MXFP8, FP4 and what later ones have."""
    memory_gib: Annotated[float, Field(gt=0, le=100_000, alias="memoryGiB")]
    """Memory that the driver reports."""
    bf16_teraflops: Annotated[Positive, Field(alias="bf16Teraflops")]
    """BF16 peak in 10^12 FLOP/s."""
    fp8_teraflops: Annotated[Positive | None, Field(alias="fp8Teraflops")] = None
    """FP8 peak in 10^12 FLOP/s; default none: recipes with FP8 are refused."""
    memory_gbps: Annotated[Positive, Field(alias="memoryGBps")]
    """Bandwidth of its own memory."""
    link_gbps: Annotated[Positive, Field(alias="linkGBps")]
    """Bandwidth of its NVLink, or of PCIe where there is none."""
    domain: PerNode
    """Accelerators that the link connects."""
    across_nodes: bool = False
    """Whether the link connects accelerators of several nodes, as in an NVL72."""
    network_gbps: Annotated[Positive, Field(alias="networkGBps")]
    """Bandwidth of the network for each accelerator."""


class TopologyDomain(ApiModel):
    """The domains of one level of the topology, such as racks: how large they are, and their uplinks."""

    nodes: Annotated[int, Field(ge=1, le=100_000)]
    """Nodes of this kind that a domain has. A run that is larger, and must be in one, is refused."""
    uplink_gbps: Annotated[Positive | None, Field(alias="uplinkGBps")] = None
    """Bandwidth out of a domain for each accelerator of it, in 10^9 bytes per second, each way; default that
    within the domain."""
    oversubscription: Annotated[float, Field(ge=1, le=1000)] | None = None
    """The same as a factor: bandwidth within a domain divided by that out of it."""


class AcceleratorProfile(ApiModel):
    """One kind of accelerator node of this cluster."""

    hardware: str | None = None
    """The planner's name of the accelerator (`h100-sxm`); default the profile's own name."""
    data_sheet: DataSheet | None = None
    """Memory, peaks and links for the planner; default those of its own table."""
    platform: Literal["gpu", "cpu"] = "gpu"
    """`cpu` runs Megatron's loop without a GPU: for demos and tests."""
    resource_name: str | None = "nvidia.com/gpu"
    """Extended resource that pods request; null requests none."""
    per_node: PerNode = 8
    """Accelerators of one node."""
    node_labels: dict[str, str] = Field(default_factory=dict)
    """Labels of nodes of this kind; they become required node affinity."""
    tolerations: list[Toleration] = Field(default_factory=list)
    """Taints that pods of this kind tolerate."""
    node_lost_after: Duration = 30
    """How long a node may be unreachable or not ready before its pods are replaced: `1m`, or seconds."""
    topology: Annotated[list[LabelKey], Field(max_length=16)] = Field(default_factory=list)
    """Node labels, nearest first, that the pods of a run should share."""
    required_topology: LabelKey | None = None
    """The one of `topology` that all pods must share: a run is placed in one domain of it, or waits."""
    topology_domains: Annotated[dict[LabelKey, TopologyDomain], Field(max_length=16)] = Field(
        default_factory=dict
    )
    """Size and uplinks of the domains of keys of `topology`; default unknown, and as fast as the network."""
    extra_resources: dict[str, Quantity] = Field(default_factory=dict)
    """Additional resources of a whole-node pod, such as `rdma/hca: 1` or `vpc.amazonaws.com/efa: 4`."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of trainer pods, such as NCCL settings."""
    resources: PodResources = PodResources()
    """CPU and memory of a pod."""
    shm_size: Quantity = "64Gi"
    """Size of /dev/shm, counted in the memory request."""
    image: Image | None = None
    """Trainer image; default the platform's."""
    image_has: Annotated[list[ImagePackage], Field(max_length=8)] = Field(default_factory=list)
    """Packages that the image of its runs has and the project's own lacks. Those of the dispatcher flex
    (`deepep`, `hybridep`, `ncclep`): a recipe of a Megatron-Bridge function then has the function's
    dispatcher, and CUDA graphs of whole iterations where these need it. `mamba-ssm`, with causal-conv1d: the
    kernels of state-space layers, without which Nemotron-H is not started on GPUs. `flash-linear-attention`:
    those of the gated delta nets of Qwen3-Next and Qwen3.5. `flash-mla`, with nvidia-cudnn-frontend[cutedsl]:
    those of the sparse attention of GLM-5."""
    pod_template: PodTemplateOverlay = PodTemplateOverlay()
    """What a fabric needs from the pods besides: annotations, volumes, devices, sidecars."""
    bind_cpus: bool = True
    """Bind ranks to the cores of their GPU's NUMA node, where the node shows them; false leaves it out."""
    compute_domain: bool = False
    """Create a ComputeDomain of NVIDIA's DRA driver for each run of several nodes: IMEX channels of NVL72."""
    price_per_gpu_hour: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    """Price of an accelerator and hour, in any currency, for the cost of plans and of `megatron ledger`."""

    def known_as(self, name: str) -> str:
        """The accelerator's name in catalog and planner; `name` is the profile's."""
        return canonical(self.hardware or name)


class NamespaceLimit(ApiModel):
    """Limits for the recipes of one namespace."""

    max_accelerators: Accelerators | None = None
    """Largest accelerator.count of one recipe."""
    accelerator_types: list[str] | None = None
    """Profiles that may be used; default all."""


class CheckpointDefaults(ApiModel):
    """The checkpoint claim of a recipe that does not set one."""

    size: Quantity = "1Ti"
    storage_class_name: Name | None = None


SIGN_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._/-]*(=(True|False|Unknown))?$"

NodeSign = Annotated[str, Field(pattern=SIGN_PATTERN, max_length=320)]
NODE_CONDITIONS: Final = (
    "GPUMissing",
    "GPUXIDErrors",
    "GpuDriverWatch",
    "GpuInforomWatch",
    "GpuMemWatch",
    "GpuNvlinkWatch",
    "GpuPcieWatch",
    "GpuThermalWatch",
    "SysLogsGPUFallenOff",
    "SysLogsSXIDError",
    "SysLogsXIDError",
    "AcceleratedHardwareReady=False",
)
NODE_TAINTS: Final = (
    "nvidia.com/gpu-nvlink-error",
    "nvidia.com/gpu-xid-error",
    "nvidia.com/syslog-xid-error",
)


class BadNodes(ApiModel):
    """Handling of nodes whose hardware fails, which runs avoid."""

    cordon: bool = False
    """Cordon them, so that no pods at all are scheduled there; requires permission to patch nodes."""
    uncordon_by_check: bool = False
    """An hour after the operator cordoned a node for a failed device, and each hour after, check its devices
    by a Job in the operator's own namespace, and uncordon the node when it passes."""
    max_share: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Largest share of the nodes that match a run which it may avoid; one node is always allowed."""
    max_per_hour: Annotated[int, Field(ge=1, le=1000)] = 4
    """Most nodes that a run begins to avoid within an hour."""
    conditions: Annotated[list[NodeSign], Field(max_length=64)] = Field(
        default_factory=lambda: list(NODE_CONDITIONS)
    )
    """Node conditions that show failed hardware, as `Type` (when True) or `Type=Status`. The default has
    those of NVSentinel, AKS' node-problem-detector and EKS' node monitoring agent."""
    taints: Annotated[list[NodeSign], Field(max_length=64)] = Field(default_factory=lambda: list(NODE_TAINTS))
    """Keys of taints that show the same."""
    move_runs: bool = False
    """Whether these conditions and taints also move a run that trains on the node, as announced maintenance
    does; false: they count once the run is interrupted there."""


MAINTENANCE_CONDITIONS = ("VMEventScheduled",)
MAINTENANCE_TAINTS = (
    "ToBeDeletedByClusterAutoscaler",
    "aws-node-termination-handler/asg-lifecycle-termination",
    "aws-node-termination-handler/scheduled-maintenance",
    "aws-node-termination-handler/spot-itn",
    "cloud.google.com/impending-node-termination",
    "karpenter.sh/disrupted",
    "remediator.kubernetes.azure.com/unschedulable",
)


MAINTENANCE_START_TIMES = ("cloud.google.com/scheduled-maintenance-time",)


class Maintenance(ApiModel):
    """Planned maintenance of nodes: a run that trains on such a node moves before the node goes."""

    conditions: Annotated[list[NodeSign], Field(max_length=64)] = Field(
        default_factory=lambda: list(MAINTENANCE_CONDITIONS)
    )
    """Node conditions that announce it, as `Type` (when True) or `Type=Status`. The default is that of AKS'
    node-problem-detector for scheduled events of the VM."""
    taints: Annotated[list[NodeSign], Field(max_length=64)] = Field(
        default_factory=lambda: list(MAINTENANCE_TAINTS)
    )
    """Keys of taints that announce it. The default has those of Cluster Autoscaler, Karpenter, GKE, AKS'
    node auto-drain and AWS Node Termination Handler; with both lists empty no node announces any."""
    start_times: Annotated[list[LabelKey], Field(max_length=16)] = Field(
        default_factory=lambda: list(MAINTENANCE_START_TIMES)
    )
    """Keys of node labels and annotations with the time at which maintenance starts, in seconds since 1970 or
    RFC 3339 with a zone: they announce it too, until a day after it. A run stays until `leadTime` before it.
    The default is that of GKE; an empty list turns it off."""
    lead_time: Duration = 900
    """How long before the start a run moves, besides the grace period of its pods: `15m`, or seconds."""
    device_taints: bool = True
    """Whether a taint of a device that a run uses announces it too, where Kubernetes allocates devices
    dynamically: of effect NoSchedule or NoExecute, set by the driver or by a DeviceTaintRule."""


class NetworkPolicies(ApiModel):
    """A NetworkPolicy for the pods of each run. It needs a network plugin that enforces such policies."""

    enabled: bool = False
    """Create one before the pods: only pods of the run, the operator and `metricsFrom` reach its pods."""
    operator_namespace: Name = "megatron-system"
    """Namespace of the operator, which reads the progress of runs; the chart sets it."""
    metrics_from: Annotated[list[Name], Field(max_length=16)] = Field(default_factory=list)
    """Namespaces whose pods may read port 8432 of training pods, such as that of Prometheus; empty: none."""


class Hub(ApiModel):
    """A Hugging Face hub, from which Jobs that import weights may download models; no other pod asks it."""

    enabled: bool = False
    """Whether recipes may name a model on it (`init.from.huggingFace.name`); otherwise they are refused."""
    endpoint: Annotated[str, Field(pattern=ENDPOINT_PATTERN, max_length=512)] | None = None
    """URL of a mirror, without user and password; default https://huggingface.co."""
    secret_key_ref: KeyReference | None = None
    """Token of recipes that set none: a Secret's key in the recipe's own namespace. Default none."""


class CpuJobs(ApiModel):
    """Pods of the Jobs without accelerators: data preparation and checks, imports and exports."""

    node_selector: Annotated[dict[str, str], Field(max_length=64)] = Field(default_factory=dict)
    """Labels that their nodes must have; default none."""
    tolerations: Annotated[list[Toleration], Field(max_length=64)] = Field(default_factory=list)
    """Taints that they tolerate; default none. Those of the accelerator profiles are not theirs."""
    max_index_memory: Quantity | None = None
    """Memory of the index of a run's samples above which it is left to rank 0; default 8Gi."""


VOLCANO: Final = "volcano"
KUBERNETES: Final = "kubernetes"


JobBackendName = Literal["pytorchjob", "jobset", "trainjob"]


class GangScheduling(ApiModel):
    """Scheduling of all pods of a run or none, by a PodGroup for each run."""

    scheduler: Annotated[Name, Field(min_length=1)]
    """What the training-operator has as `--gang-scheduler-name`: `volcano`, or the name of a scheduler with
    the plugin Coscheduling of scheduler-plugins; it becomes `schedulerName` of the pods. Or `kubernetes`:
    Kubernetes 1.36's own scheduler with its feature gates GenericWorkload and GangScheduling, for which the
    operator creates the PodGroup."""
    queue: Name | None = None
    """Volcano queue of all runs; default Volcano's `default`."""
    schedule_timeout_seconds: Annotated[int, Field(ge=1, le=3600)] | None = None
    """Seconds that Coscheduling holds places for the pods of a gang that have none yet; default that of
    the scheduler."""


class PlatformConfig(ApiModel):
    """Settings of a cluster that recipes need not repeat."""

    accelerators: dict[str, AcceleratorProfile] = Field(default_factory=dict)
    """Profiles by the name that recipes use."""
    default_accelerator: str | None = None
    """Profile of recipes that set none; default the only one."""
    image: Image | None = None
    """Trainer image of profiles that set none."""
    bridge_image: Image | None = None
    """Trainer image with Megatron-Bridge, for recipes of engine `bridge` that set no `image`. Default none:
    such recipes are refused."""
    image_pull_secrets: list[str] = Field(default_factory=list)
    service_accounts: Annotated[list[Name], Field(max_length=1024)] = Field(default_factory=list)
    """Service accounts that recipes may name, each in the recipe's own namespace; default none."""
    checkpoint: CheckpointDefaults = CheckpointDefaults()
    data_storage_class_name: Name | None = None
    queue: Name | None = None
    """Kueue local queue of recipes that set none."""
    workload_priority_class_name: Name | None = None
    """Kueue's WorkloadPriorityClass of recipes with a queue that set none."""
    topology_aware_queues: bool = False
    """Whether the flavors of Kueue's queues have a Topology with the keys of `topology` as levels. Then the
    nearest key is the preferred topology of a queued run's pods; a flavor without a Topology never admits
    such a run."""
    job_backend: JobBackendName = "pytorchjob"
    """Kind of training job of new runs; a job that exists keeps its kind. `jobset` needs JobSet in the
    cluster, `trainjob` Kubeflow Trainer v2, and of `gangScheduling` they take only Kubernetes' own."""
    gang_scheduling: GangScheduling | None = None
    """Gang scheduling without Kueue; default none."""
    recovery_priority_class_name: Name | None = None
    """PriorityClass of pods with which a run goes on: those that replace others, and those of a job that the
    operator has created again, to resize a run (to a larger size too) or to move it. They are scheduled
    before pods of runs that wait for nodes. Recipes with a `priorityClassName` or a queue keep theirs.
    Default none."""
    namespaces: dict[str, NamespaceLimit] = Field(default_factory=dict)
    """Limits by namespace; `*` applies to all others."""
    bad_nodes: BadNodes = BadNodes()
    """Handling of nodes whose hardware fails, which runs avoid."""
    maintenance: Maintenance = Maintenance()
    """Planned maintenance of nodes, before which runs move."""
    network_policies: NetworkPolicies = NetworkPolicies()
    """NetworkPolicies of runs."""
    hub: Hub = Hub()
    """Download of models by their name on a hub."""
    cpu_jobs: CpuJobs | None = None
    """Pods of the Jobs without accelerators; by default they run on any node without taints."""
