"""What the fork server imports before it forks ranks, and how ranks start where they cannot be forked."""

import os
import sys
from types import ModuleType

from megatron_trainer import engine
from megatron_trainer.launcher.fork_server import Programs


def warm_up(platform: str, flags: list[str]) -> Programs:
    """Import torch and Megatron, in the fork server.

    On the gpu platform ranks and the check of the flags start cold, as new interpreters, if CUDA cannot be
    used in a forked child.
    """
    # pyarrow, which transformers may import, has an allocator with a thread, which a fork does not copy.
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    if platform == "cpu":
        from megatron_trainer.platform import cpu

        cpu.install()
        main = _import_worker(flags)
        from megatron_trainer.health import device_check, pair_check

        return Programs(
            rank=lambda: main.run_rank(flags, forked=True),
            preflight=lambda: main.check(flags),
            device_check=device_check.run,
            pair_check=pair_check.run,
        )
    from megatron_trainer.platform import gpu

    with gpu.imports_without_cuda():
        main = _import_worker(flags)
        from megatron_trainer.health import device_check, pair_check

        flags, added = (flags, []) if engine.is_bridge() else gpu.adapt(flags)
    if added:
        _log(f"flags added for the installed packages: {' '.join(added)}")
    if reason := gpu.explain_cold_start():
        _log(f"ranks start cold, not forked: {reason}")
    command = [sys.executable, "-m", main.__name__]
    return Programs(
        rank=lambda: main.run_rank(flags, forked=True),
        preflight=lambda: main.check(flags),
        cold_rank=[*command, "rank", *flags] if reason else None,
        cold_preflight=[*command, "preflight", *flags] if reason else None,
        device_check=device_check.run,
        pair_check=pair_check.run,
        cold_device_check=[sys.executable, "-m", device_check.__name__] if reason else None,
        cold_pair_check=[sys.executable, "-m", pair_check.__name__] if reason else None,
    )


def _import_worker(flags: list[str]) -> ModuleType:
    if engine.is_bridge():
        from megatron_trainer.bridge import configuration, rank

        configuration.import_bridge()
        return rank
    from megatron_trainer.worker import main

    if "HuggingFaceTokenizer" in flags:
        # Imports transformers, which every rank would otherwise import itself.
        import megatron.core.tokenizers.text.libraries.huggingface_tokenizer  # noqa: F401
    return main


def _log(text: str) -> None:
    print(f"megatron-train: {text}", file=sys.stderr, flush=True)
