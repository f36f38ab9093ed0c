"""What a trainer's processes need besides the simulated CUDA driver, in a pod of the local cluster.

Python imports this module at start where its folder is on PYTHONPATH. Ranks talk over gloo, since NCCL
contains NVIDIA's runtime, and have a fused Adam, which the gpu platform takes from Transformer Engine.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from typing import Any

LAUNCHER = "megatron-train"
WORKER = "megatron_trainer.worker.main"
"""It imports Megatron."""


class Finder(importlib.abc.MetaPathFinder):
    """Imports `fused_adam` and `host_decisions` as soon as WORKER is imported."""

    def find_spec(self, name: str, _path: Any, _target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != WORKER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def execute_and_replace(module: ModuleType) -> None:
            execute(module)
            for each in ("fused_adam", "host_decisions"):
                importlib.import_module(each)

        spec.loader.exec_module = execute_and_replace  # type: ignore[method-assign]
        return spec


if sys.argv and sys.argv[0].endswith(f"/{LAUNCHER}"):
    sys.argv += ["--distributed-backend", "gloo"]
sys.meta_path.insert(0, Finder())
