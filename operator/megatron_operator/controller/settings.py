"""What the operator is told at its start: environment names are those of the command's options."""

from dataclasses import dataclass

DEFAULT_PROGRESS_URL = "http://{ip}:{port}/progress"


@dataclass(frozen=True, slots=True)
class Settings:
    """How this operator runs. What may change while it runs is in the platform ConfigMap instead."""

    namespace: str = "megatron-system"
    """The operator's own, where its ConfigMaps lie."""
    watch_namespaces: tuple[str, ...] = ()
    """Namespaces whose recipes are served; empty serves all."""
    platform_config_map: str = "megatron-platform"
    catalog_config_map: str = "megatron-catalog"
    node_discovery: bool = False
    """Learn accelerators from the labels of nodes, for what the platform file does not say."""
    progress_url: str = DEFAULT_PROGRESS_URL
    """Where a pod tells its progress; {ip} {port} {namespace} {pod} are filled in."""
    progress_interval: float = 5.0
    """Seconds between two looks at the progress of a run."""
    workers: int = 8
    """Recipes that are reconciled at once."""

    webhook_port: int = 0
    """Port of the validating webhook; 0: none."""
    webhook_certificates: str = "/certificates"
    """Folder with the webhook's tls.crt and tls.key."""

    def serves(self, namespace: str) -> bool:
        return not self.watch_namespaces or namespace in self.watch_namespaces
