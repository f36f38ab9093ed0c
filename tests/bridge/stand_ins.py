"""Stand-ins that let Megatron-Bridge be imported and its recipe functions be called without a GPU.

Recipe functions only fill in a ConfigContainer. None of the packages below computes anything in them, so each
is replaced by a hollow one: every name in it is there, and nothing in it does anything.
"""

import abc
import importlib
import importlib.machinery
import os
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

HOLLOW_PACKAGES = (
    "causal_conv1d",
    "comet_ml",
    "datasets",
    "diffusers",
    "einops",
    "fla",
    "flashinfer",
    "hydra",
    "mamba_ssm",
    "megatron.energon",
    "mlflow",
    "modelopt",
    "nvidia_resiliency_ext",
    "omegaconf",
    "open_clip",
    "qwen_vl_utils",
    "timm",
    "torch.utils.tensorboard",
    "transformer_engine",
    "wandb",
)


class _HollowClass(abc.ABCMeta):
    """Any attribute is again a hollow class, which is generic, a valid base, and a decorator when called."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _hollow_class(name)

    def __getitem__(cls, _: object) -> Any:
        return cls

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "is_hollow" not in cls.__dict__:
            return super().__call__(*args, **kwargs)
        if len(args) == 1 and callable(args[0]) and not kwargs:
            return args[0]
        return _unchanged


def _unchanged(decorated: Any) -> Any:
    return decorated


def _hollow_class(name: str) -> Any:
    return _HollowClass(name, (object,), {"is_hollow": True})


class _HollowModule(types.ModuleType):
    __path__: Sequence[str] = []
    __version__ = "2.9.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _hollow_class(name)


class _HollowFinder:
    """Finds a hollow module for every package of the list."""

    def find_spec(self, name: str, _path: object, _target: object = None) -> Any:
        if any(name == package or name.startswith(f"{package}.") for package in HOLLOW_PACKAGES):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _HollowModule(spec.name)

    def exec_module(self, _module: types.ModuleType) -> None:
        """Does nothing: a hollow module has no code."""


def install() -> None:
    """Call once per process, before the first import of megatron.bridge."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    os.environ["HF_HUB_OFFLINE"] = "1"
    # Megatron Core detects packages at import; it must not find Transformer Engine.
    for module in (
        "megatron.core.inference.engines",
        "megatron.core.models.gpt.gpt_layer_specs",
        "megatron.training.training",
    ):
        importlib.import_module(module)
    import torch

    sys.meta_path.insert(0, _HollowFinder())  # type: ignore[arg-type]
    h100 = types.SimpleNamespace(major=9, minor=0, total_memory=80 << 30, name="stand-in for an H100")
    stand_ins: dict[str, Callable[..., Any]] = {
        "device_count": lambda: 8,
        "get_device_capability": lambda *_: (h100.major, h100.minor),
        "get_device_properties": lambda *_: h100,
        "is_available": lambda: True,
    }
    for name, stand_in in stand_ins.items():
        setattr(torch.cuda, name, stand_in)
