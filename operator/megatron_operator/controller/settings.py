"""The operator's settings, from the options of its command and their environment variables."""

from dataclasses import dataclass

DEFAULT_PROGRESS_URL = "http://{ip}:{port}/progress"


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
    progress_url: str = DEFAULT_PROGRESS_URL
    """URL of a pod's progress, with {ip} {port} {namespace} {pod}."""
    progress_interval: float = 5.0
    """Seconds between two polls of a run's progress."""
    workers: int = 8
    """Recipes that are reconciled concurrently."""

    webhook_port: int = 0
    """Port of the validating webhook; 0: none."""
    webhook_certificates: str = "/certificates"
    """Directory with the webhook's tls.crt and tls.key."""

    def serves(self, namespace: str) -> bool:
        """Whether recipes of this namespace are served."""
        return not self.watch_namespaces or namespace in self.watch_namespaces
