"""Megatron FSDP with tensors on the CPU: its meshes of devices are those of CPUs.

Its adapter of megatron-core 0.19.2 states `cuda` as the type of every mesh, and the distributed tensors of a
mesh expect their parts on a device of that type. The rest runs on the stand-in for torch.cuda.
"""

from collections.abc import Sequence
from typing import Any

from torch.distributed import DeviceMesh, ProcessGroup


class _MeshOfCpus:
    """Takes the place of DeviceMesh in the adapter, which makes meshes of process groups that exist."""

    @staticmethod
    def from_group(groups: Sequence[ProcessGroup], device_type: str, **mesh: Any) -> DeviceMesh:
        assert device_type == "cuda"
        return DeviceMesh.from_group(list(groups), "cpu", **mesh)


def install() -> None:
    """Have Megatron FSDP make meshes of CPUs."""
    from megatron.core.distributed.fsdp import mcore_fsdp_adapter

    mcore_fsdp_adapter.DeviceMesh = _MeshOfCpus
