"""Which import of the fork server starts a thread of NVIDIA's driver: prints its name, or nothing.

python -m tests.gpu.hardware.imports, with MEGATRON_PLATFORM=gpu
"""

import builtins
from typing import Any

from megatron_trainer.launcher.warm_up import warm_up
from megatron_trainer.platform import gpu


def main() -> None:
    """Import what the fork server imports, and look for the thread after each import."""
    inner, found = builtins.__import__, False

    def watched(name: str, *args: Any, **kwargs: Any) -> Any:
        nonlocal found
        module = inner(name, *args, **kwargs)
        # The innermost import returns first.
        if not found and any(thread.startswith(gpu.DRIVER_THREAD) for thread in gpu.other_threads()):
            found = True
            print(name, flush=True)
        return module

    builtins.__import__ = watched
    warm_up("gpu", [])


if __name__ == "__main__":
    main()
