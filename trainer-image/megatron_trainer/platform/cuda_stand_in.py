"""A stand-in for torch.cuda on a machine without a GPU: enough of it for Megatron's training loop.

All tensors are on the CPU; "cuda" as a device means the CPU. As on a GPU machine, there are two random number
streams. torch's default CPU generator serves as the device's stream, since every tensor operation draws from
it and on a GPU machine those run on the device. The host's stream is a separate generator, behind
`torch.get_rng_state`, `torch.set_rng_state` and the data loader's seed. Megatron saves and restores both
through its usual calls, so a resumed run draws the same numbers as an uninterrupted one, dropout included.
"""

import time
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader

_CPU = torch.device("cpu")
# What code makes of `torch.cuda.current_device()` where it is a number.
_CURRENT = f"cuda:{_CPU}"
_HOST_MEMORY_BYTES = 16 << 30

host_generator = torch.Generator()


class _Stream:
    """A CUDA stream without pending work: CPU operations are done when they return."""

    cuda_stream = 0

    def __init__(self, *_args: Any, **_kwargs: Any) -> None: ...

    def __enter__(self) -> "_Stream":
        return self

    def __exit__(self, *_exc: object) -> None: ...

    def synchronize(self) -> None: ...

    def wait_stream(self, _stream: Any) -> None: ...

    def wait_event(self, _event: Any) -> None: ...

    def record_event(self, event: "_Event | None" = None) -> "_Event":
        event = event or _Event()
        event.record()
        return event

    def query(self) -> bool:
        return True


class _Event:
    """A CUDA event that completes when it is recorded."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        self._at = 0.0

    def record(self, _stream: Any = None) -> None:
        self._at = time.perf_counter()

    def elapsed_time(self, end: "_Event") -> float:
        """Milliseconds from this event to `end`."""
        return (end._at - self._at) * 1e3

    def synchronize(self) -> None: ...

    def wait(self, _stream: Any = None) -> None: ...

    def query(self) -> bool:
        return True


class _Generators:
    """`torch.cuda.default_generators`: one stream for all devices."""

    def __getitem__(self, _device: object) -> torch.Generator:
        return torch.default_generator

    def __len__(self) -> int:
        return 1


def _names_cuda(device: object) -> bool:
    if isinstance(device, torch.device):
        return bool(device.type == "cuda")
    if isinstance(device, str):
        return device.startswith("cuda")
    return isinstance(device, int) and not isinstance(device, bool)


class _CudaMeansCpu(TorchFunctionMode):
    """Rewrites the device of every torch call from cuda to cpu."""

    def __torch_function__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if kwargs:
            if _names_cuda(kwargs.get("device")):
                kwargs["device"] = _CPU
            if kwargs.get("pin_memory"):
                kwargs["pin_memory"] = False
        if func is torch.device and args == (_CURRENT,):
            args = (_CPU,)
        if func is torch.Tensor.to:
            args = tuple(_CPU if isinstance(a, str | torch.device) and _names_cuda(a) else a for a in args)
        return func(*args, **(kwargs or {}))


_mode = _CudaMeansCpu()
_tensor_type = torch.Tensor.type
_loader_init = DataLoader.__init__


def _reported_type(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Return `Tensor.type()` as on a GPU: Megatron groups parameters by it (torch.cuda.BFloat16Tensor)."""
    result = _tensor_type(tensor, *args, **kwargs)
    if args or kwargs or not isinstance(result, str) or "cuda" in result:
        return result
    return result.replace("torch.", "torch.cuda.")


def _loader_on_host_stream(loader: Any, *args: Any, **kwargs: Any) -> None:
    """Draw the base seed of a data loader from the host's stream, as on a GPU machine."""
    if kwargs.get("generator") is None:
        kwargs["generator"] = host_generator
    _loader_init(loader, *args, **kwargs)


def _seed_both(seed: int) -> torch.Generator:
    host_generator.manual_seed(int(seed))
    torch.default_generator.manual_seed(int(seed))
    return host_generator


def _seed_device(seed: int) -> None:
    torch.default_generator.manual_seed(int(seed))


def _seed_all_devices(seed: int) -> None:
    _seed_device(seed)


def _device_state(device: object = "cuda") -> torch.Tensor:  # noqa: ARG001
    return torch.default_generator.get_state()


def _set_device_state(state: torch.Tensor, device: object = "cuda") -> None:  # noqa: ARG001
    torch.default_generator.set_state(state)


def _no_op() -> Any:
    """Return a new function that does nothing; torch.compile needs distinct functions in torch.cuda."""
    return lambda *_args, **_kwargs: None


def install() -> None:
    """Replace torch.cuda by the stand-in. Call it before Megatron is imported, which copies names."""
    cuda: Any = torch.cuda
    properties = SimpleNamespace(
        name="cpu",
        major=8,
        minor=0,
        multi_processor_count=1,
        total_memory=_HOST_MEMORY_BYTES,
    )
    cuda.is_available = lambda: True
    cuda.is_initialized = lambda: True
    cuda.init, cuda._lazy_init = _no_op(), _no_op()
    cuda._lazy_call = lambda call, **_kwargs: call()
    cuda.device_count = lambda: 1
    cuda.current_device = lambda: _CPU
    for name in ("set_device", "set_stream", "synchronize", "empty_cache", "reset_peak_memory_stats"):
        setattr(cuda, name, _no_op())
    cuda.get_device_properties = lambda *_a: properties
    cuda.get_device_capability = lambda *_a: (properties.major, properties.minor)
    cuda.get_device_name = lambda *_a: properties.name
    cuda.is_current_stream_capturing = lambda: False

    cuda.Stream, cuda.Event = _Stream, _Event
    cuda.stream = lambda _stream: _Stream()
    cuda.current_stream, cuda.default_stream = (lambda *_a: _Stream()), (lambda *_a: _Stream())
    cuda.nvtx.range_push, cuda.nvtx.range_pop = _no_op(), _no_op()

    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        setattr(cuda, name, lambda *_a: 0)
    cuda.memory_stats = lambda *_a: {}
    cuda.mem_get_info = lambda *_a: (_HOST_MEMORY_BYTES, _HOST_MEMORY_BYTES)

    for name in ("temperature", "power_draw", "utilization", "clock_rate"):
        setattr(cuda, name, lambda *_a: 0)

    cuda.default_generators = _Generators()
    cuda.get_rng_state = cuda.random.get_rng_state = _device_state
    cuda.set_rng_state = cuda.random.set_rng_state = _set_device_state
    cuda.manual_seed, cuda.manual_seed_all = _seed_device, _seed_all_devices
    cuda.initial_seed = torch.default_generator.initial_seed
    torch.get_rng_state = torch.random.get_rng_state = host_generator.get_state
    torch.set_rng_state = torch.random.set_rng_state = host_generator.set_state
    torch.manual_seed = torch.random.manual_seed = _seed_both
    DataLoader.__init__ = _loader_on_host_stream

    tensor: Any = torch.Tensor
    tensor.cuda = tensor.pin_memory = lambda self, *_a, **_k: self
    tensor.type = _reported_type
    torch.nn.Module.cuda = lambda self, *_a, **_k: self
    torch.accelerator.is_available = lambda: False
    _mode.__enter__()
