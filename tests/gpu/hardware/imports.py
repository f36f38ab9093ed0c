"""Which import of the fork server starts a thread of NVIDIA's driver: prints its name, or nothing.

python -m tests.gpu.hardware.imports, with MEGATRON_PLATFORM=gpu
"""

import builtins
from collections.abc import Callable
from typing import Any

from megatron_trainer.launcher.warm_up import warm_up
from megatron_trainer.platform import gpu


def driver_runs() -> bool:
    """Whether this process has a thread of the driver."""
    return any(thread.startswith(gpu.DRIVER_THREAD) for thread in gpu.other_threads())


def first_import_after_which(started: Callable[[], bool], imports: Callable[[], object]) -> str | None:
    """Return the name of the innermost of the imports after which `started` is true, None without one."""
    inner, found, asking = builtins.__import__, None, False

    def watched(name: str, *args: Any, **kwargs: Any) -> Any:
        nonlocal found, asking
        module = inner(name, *args, **kwargs)
        # `started` may import too: pathlib does with each path in some releases of Python.
        if found is None and not asking:
            asking = True
            found = name if started() else None
            asking = False
        return module

    builtins.__import__ = watched
    try:
        imports()
    finally:
        builtins.__import__ = inner
    return found


if __name__ == "__main__":
    print(first_import_after_which(driver_runs, lambda: warm_up("gpu", [])) or "", flush=True)
