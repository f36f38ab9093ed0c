"""The platform that commands assume without --platform: one node type for every known accelerator."""

from megatron_operator.api.platform import PlatformConfig
from megatron_operator.planner.estimate import hardware

DEFAULT_ACCELERATOR = "h100-sxm"
IMAGE = "megatron-trainer:dev"
BRIDGE_IMAGE = "megatron-trainer-bridge:dev"


def default_platform() -> PlatformConfig:
    """One profile per known accelerator, with 4 or 8 per node as vendors sell them, and `cpu`."""
    profiles: dict[str, dict[str, object]] = {
        name: {"perNode": 4 if accelerator.domain > 8 else 8}
        for name, accelerator in hardware.table().items()
        if accelerator is not None and accelerator.name == name
    }
    profiles["cpu"] = {"platform": "cpu", "perNode": 2, "resourceName": None, "shmSize": "1Gi"}
    return PlatformConfig.model_validate(
        {
            "accelerators": profiles,
            "defaultAccelerator": DEFAULT_ACCELERATOR,
            "image": IMAGE,
            "bridgeImage": BRIDGE_IMAGE,
        }
    )
