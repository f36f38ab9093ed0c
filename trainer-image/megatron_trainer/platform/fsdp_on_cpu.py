"""Megatron FSDP with tensors on the CPU: its meshes of devices are those of CPUs.

Its adapter of megatron-core 0.19.2 states `cuda` as the type of every mesh, and the distributed tensors of a
mesh expect their parts on a device of that type. The rest runs on the stand-in for torch.cuda.

Parameters are gathered while the rank waits. On a GPU a stream keeps the order of gathers, computation and
the reuse of memory; threads of gloo keep none, and a rank died by SIGSEGV in one (once, on a busy machine).
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from torch.distributed import DeviceMesh, ProcessGroup


class _MeshOfCpus:
    """Takes the place of DeviceMesh in the adapter, which makes meshes of process groups that exist."""

    @staticmethod
    def from_group(groups: Sequence[ProcessGroup], device_type: str, **mesh: Any) -> DeviceMesh:
        assert device_type == "cuda"
        return DeviceMesh.from_group(list(groups), "cpu", **mesh)


def install() -> None:
    """Have Megatron FSDP make meshes of CPUs, and wait for what it gathers."""
    from megatron.core.distributed.fsdp import mcore_fsdp_adapter
    from megatron.core.distributed.fsdp.src.megatron_fsdp import param_and_grad_buffer

    mcore_fsdp_adapter.DeviceMesh = _MeshOfCpus
    inner = param_and_grad_buffer._coalescing_manager

    @contextlib.contextmanager
    def waited(group: ProcessGroup, async_ops: bool = False) -> Iterator[Any]:
        with inner(group, async_ops=async_ops) as gathered:
            yield gathered
        if async_ops:
            gathered.wait()

    param_and_grad_buffer._coalescing_manager = waited
