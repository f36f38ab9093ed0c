"""The operator's settings, from the options of its command and their environment variables."""

from dataclasses import dataclass, field

from megatron_operator.manifests import jobset, trainjob
from megatron_operator.manifests.job_backends import BACKENDS

DEFAULT_PROGRESS_URL = "http://{ip}:{port}/progress"


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Seconds, named as in client-go. Raises ValueError unless they allow a takeover without overlap."""

    lease_duration: int = 12
    """Others wait so long after they have last seen the Lease change."""
    renew_deadline: int = 9
    """The leader writes only for so long after it sent its last renewal that succeeded."""
    retry_period: int = 2
    """Between two attempts to acquire or renew."""

    def __post_init__(self) -> None:
        if not self.lease_duration > self.renew_deadline > self.retry_period >= 1:
            raise ValueError(
                f"leader election: lease duration {self.lease_duration} s, renew deadline "
                f"{self.renew_deadline} s, retry period {self.retry_period} s; each must be greater than the "
                "next, and the last at least 1"
            )


@dataclass(frozen=True, slots=True)
class Settings:
    """Fixed while the operator runs; what may change meanwhile is in the platform ConfigMap."""

    namespace: str = "megatron-system"
    """The operator's own namespace, with its ConfigMaps."""
    watch_namespaces: tuple[str, ...] = ()
    """Namespaces whose recipes are served; empty serves all."""
    platform_config_map: str = "megatron-platform"
    catalog_config_map: str = "megatron-catalog"
    node_discovery: bool = False
    """Discover accelerators from node labels, in addition to the platform file."""
    jobsets: bool = False
    """Handle training jobs of kind JobSet too; without it JobSets are neither read nor watched."""
    trainjobs: bool = False
    """The same for kind TrainJob, whose JobSets are read even without `jobsets`."""
    progress_url: str = DEFAULT_PROGRESS_URL
    """URL of a pod's progress, with {ip} {port} {namespace} {pod}."""
    progress_interval: float = 5.0
    """Seconds between two polls of a run's progress."""
    workers: int = 32
    """Recipes that are reconciled concurrently; new ones `workqueue.STARTS` times as many."""

    webhook_port: int = 0
    """Port of the validating webhook; 0: none."""
    webhook_certificates: str = "/certificates"
    """Directory with the webhook's tls.crt and tls.key."""

    liveness_port: int = 0
    """Port of /healthz and /readyz; 0: none."""
    leader_elect: bool = False
    """Act only while holding the Lease `lease_name` in `namespace`; otherwise act at once."""
    lease_name: str = "megatron-operator"
    lease_times: LeaseTimes = field(default_factory=LeaseTimes)

    @property
    def job_kinds(self) -> tuple[str, ...]:
        """Kinds of training job that are handled."""
        handled = {jobset.KIND: self.jobsets, trainjob.KIND: self.trainjobs}
        return tuple(each.KIND for each in BACKENDS.values() if handled.get(each.KIND, True))

    def serves(self, namespace: str) -> bool:
        """Whether recipes of this namespace are served."""
        return not self.watch_namespaces or namespace in self.watch_namespaces
