"""The platform's overlay of trainer pods (`podTemplate` of a profile): what a fabric needs from its pods.

Owned by the platform file and never set by a recipe: most of it is beyond Pod Security `restricted`.
"""

from typing import Annotated, Literal

from pydantic import Field

from megatron_operator.api.base import ApiModel
from megatron_operator.api.bounds import Name, Text
from megatron_operator.api.recipe import Image, Quantity

_Port = Annotated[int, Field(ge=1, le=65_535)]
_Words = Annotated[list[Text], Field(max_length=64)]


class HostPathVolume(ApiModel):
    """A path of the node, such as drivers and plugins that a DaemonSet installs."""

    path: Text
    type: (
        Literal[
            "DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice"
        ]
        | None
    ) = None


class EmptyDirVolume(ApiModel):
    """A folder of the pod, such as one that a sidecar shares with the trainer."""

    medium: Literal["Memory"] | None = None
    size_limit: Quantity | None = None


class ConfigMapVolume(ApiModel):
    """A ConfigMap of the recipe's namespace, such as NCCL's topology file."""

    name: Name
    optional: bool | None = None


class CsiVolume(ApiModel):
    """A volume of a CSI driver that lives as long as the pod."""

    driver: Name
    read_only: bool | None = None
    volume_attributes: dict[str, Text] | None = None


class OverlayVolume(ApiModel):
    """A volume of the pod; exactly one source is set."""

    name: Name
    host_path: HostPathVolume | None = None
    empty_dir: EmptyDirVolume | None = None
    config_map: ConfigMapVolume | None = None
    csi: CsiVolume | None = None


class OverlayMount(ApiModel):
    """Where a container sees a volume of the overlay."""

    name: Name
    mount_path: Text
    sub_path: Text | None = None
    read_only: bool | None = None


class PodResourceClaim(ApiModel):
    """A claim of Dynamic Resource Allocation that the pod and the trainer use; exactly one source is set."""

    name: Name
    resource_claim_name: Name | None = None
    resource_claim_template_name: Name | None = None


class SidecarCapabilities(ApiModel):
    """Capabilities that a sidecar has beyond none."""

    add: _Words


class SidecarSecurity(ApiModel):
    """Security context of a sidecar; what is left out is as in the trainer's container."""

    privileged: bool | None = None
    run_as_user: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    read_only_root_filesystem: bool | None = None
    capabilities: SidecarCapabilities | None = None


class SidecarResources(ApiModel):
    """Requests and limits of a sidecar, on top of the trainer's."""

    requests: dict[str, Quantity] | None = None
    limits: dict[str, Quantity] | None = None


class Sidecar(ApiModel):
    """A container that starts before the trainer and is stopped after it: an init container that restarts."""

    name: Name
    image: Image
    command: _Words | None = None
    args: _Words | None = None
    env: dict[str, str] = Field(default_factory=dict)
    ports: Annotated[list[_Port], Field(max_length=32)] = Field(default_factory=list)
    """Ports that it listens on, so that conflicts are found."""
    volume_mounts: Annotated[list[OverlayMount], Field(max_length=32)] = Field(default_factory=list)
    resources: SidecarResources | None = None
    security_context: SidecarSecurity | None = None


class PodTemplateOverlay(ApiModel):
    """What pods of a profile have besides what the operator sets.

    `runtimeClassName`, `schedulerName`, `volumes` and `volumeMounts` apply to every pod of the profile, the
    rest to whole-node pods only, as `extraResources`.
    """

    annotations: dict[str, Annotated[str, Field(max_length=65_536)]] = Field(default_factory=dict)
    """Annotations, such as those that attach the interfaces of a fabric."""
    volumes: Annotated[list[OverlayVolume], Field(max_length=32)] = Field(default_factory=list)
    volume_mounts: Annotated[list[OverlayMount], Field(max_length=32)] = Field(default_factory=list)
    """Mounts of the trainer's container."""
    resources: dict[str, Quantity] = Field(default_factory=dict)
    """Devices and huge pages that the trainer's container requests, besides `extraResources`."""
    resource_claims: Annotated[list[PodResourceClaim], Field(max_length=32)] = Field(default_factory=list)
    sidecars: Annotated[list[Sidecar], Field(max_length=8)] = Field(default_factory=list)
    host_network: bool = False
    """Use the node's network; NetworkPolicies do not apply to such pods."""
    runtime_class_name: Name | None = None
    scheduler_name: Name | None = None
    capabilities: Annotated[list[Literal["IPC_LOCK"]], Field(max_length=1)] = Field(default_factory=list)
    """Capabilities of the trainer's container; see docs/platform.md for what Pod Security allows."""
