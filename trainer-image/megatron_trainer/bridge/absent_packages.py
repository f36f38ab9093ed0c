"""Placeholders for packages that Megatron-Bridge imports and the image lacks.

Bridge imports them for features that these runs do not use. A class of a placeholder can be named, derived
from and used as a decorator, so that Bridge's modules import; making an object of one raises ImportError with
the reason.
"""

import abc
import importlib.machinery
import sys
import types
from collections.abc import MutableSequence
from typing import Any

ABSENT = {
    "nvidia_resiliency_ext.inprocess": "the launcher restarts ranks, not the rank itself",
    "megatron.energon": "image-text samples are read from the tar files of a WebDataset without it",
    "diffusers": "diffusion models need it, for the embeddings of their time steps",
}
"""Package -> why the image does without it."""
ABSENT_ON_CPU = {"transformer_engine": "Transformer Engine needs a GPU"}


class _AbsentClass(abc.ABCMeta):
    """Any attribute is again such a class."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _absent_class(f"{cls.__name__}.{name}", cls.reason)

    def __getitem__(cls, _: object) -> Any:
        return cls

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "reason" in cls.__dict__:
            # A decorator, without and with options.
            if len(args) == 1 and callable(args[0]) and not kwargs:
                return args[0]
            if kwargs and not args:
                return _unchanged
            raise ImportError(f"{cls.__name__} is not in this image: {cls.reason}")
        return super().__call__(*args, **kwargs)


def _unchanged(decorated: Any) -> Any:
    return decorated


def _absent_class(name: str, reason: str) -> Any:
    return _AbsentClass(name, (), {"reason": reason})


class _AbsentModule(types.ModuleType):
    __version__ = "0"

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.__path__: MutableSequence[str] = []
        self.reason = reason

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _absent_class(f"{self.__name__}.{name}", self.reason)


class _Finder:
    """Finds a placeholder for every package of `absent` and its parts."""

    def __init__(self, absent: dict[str, str]) -> None:
        self._absent = absent

    def _reason(self, name: str) -> str | None:
        for package, reason in self._absent.items():
            if name == package or name.startswith(f"{package}.") or package.startswith(f"{name}."):
                return reason
        return None

    def find_spec(self, name: str, _path: object, _target: object = None) -> Any:
        # `megatron` itself is there.
        if name == "megatron" or self._reason(name) is None:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> types.ModuleType:
        return _AbsentModule(spec.name, self._reason(spec.name) or "")

    def exec_module(self, _module: types.ModuleType) -> None:
        """Does nothing: a placeholder has no code."""


def install(platform: str) -> None:
    """Call it after Megatron is imported, which detects packages by importing them."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    absent = ABSENT | (ABSENT_ON_CPU if platform == "cpu" else {})
    sys.meta_path.append(_Finder(absent))
