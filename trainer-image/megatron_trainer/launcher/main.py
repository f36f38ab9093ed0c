"""`megatron-train`: the pod's entrypoint. Its arguments are Megatron's flags; its settings are environment
variables.

Imports nothing heavy, and runs only as __main__: helpers that Megatron spawns import this module again.
"""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from megatron_contract.environment import SETTINGS
from megatron_contract.exit_codes import REASONS, ExitCode
from megatron_contract.progress import ProgressReport

from megatron_trainer import engine
from megatron_trainer import settings as pod_settings
from megatron_trainer.flags import MEGATRON_FSDP, FlagError
from megatron_trainer.launcher.log_output import finish_streams
from megatron_trainer.platform import cpu
from megatron_trainer.secret_values import name_secret_variables
from megatron_trainer.settings import SettingError, Settings
from megatron_trainer.termination import Ending, write
from megatron_trainer.tracking.processes import why_absent

HELP = f"""usage: megatron-train MEGATRON_FLAG ...
       megatron-train FUNCTION PATH=JSON ...    with MEGATRON_ENGINE=bridge

Run this pod's ranks of a Megatron Core training run, from the newest complete checkpoint to the last
iteration. All arguments are flags of Megatron 0.19.2 (`megatron args` prints those of a recipe).

Settings are environment variables. The training-operator sets PET_NNODES, PET_NODE_RANK, PET_NPROC_PER_NODE,
MASTER_ADDR and MASTER_PORT. The others are:
{"\n".join(f"  {name:28} {text}" for name, text in SETTINGS.items())}

Exit codes: {", ".join(f"{int(code)} {reason}" for code, reason in REASONS.items())}
"""


_LONGEST_TMPDIR: Final = 107 - len("/megatron-12345678/collectives-1234.socket")
"""Bytes: 107 is what Linux takes as the path of a Unix socket (unix(7)); the longest is that of
EventSocket.folder with stacks.collectives_socket.
"""

_NO_THREAD: Final = "can't start new thread"
"""The text of the RuntimeError that Thread.start raises."""


def log(text: str) -> None:
    """Print one line of the launcher to the pod's log."""
    print(f"megatron-train: {text}", file=sys.stderr, flush=True)


def _prepare_environment(world_size: int, argv: Sequence[str]) -> None:
    """Set a home and caches writable by any user on a read-only root, and one thread per rank by default.

    Raises SettingError if the temporary directory's path leaves no room for the ranks' sockets below it.
    """
    temporary = Path(os.environ.setdefault("TMPDIR", "/tmp"))
    length = len(os.fsencode(temporary))
    if length > _LONGEST_TMPDIR:
        raise SettingError(
            f"TMPDIR: {str(temporary)!r} has {length} bytes; with more than {_LONGEST_TMPDIR}, paths of the"
            " ranks' Unix sockets below it would be too long; set a shorter one"
        )
    if not os.access(os.environ.get("HOME", "/"), os.W_OK):
        os.environ["HOME"] = str(temporary)
    for name, folder in (
        ("XDG_CACHE_HOME", "cache"),
        ("TORCHINDUCTOR_CACHE_DIR", "inductor"),
        ("TRITON_CACHE_DIR", "triton"),
        ("HF_HOME", "huggingface"),
    ):
        os.environ.setdefault(name, str(temporary / folder))
    # torch asks for the name of the user, who need not be in the image's /etc/passwd.
    os.environ.setdefault("USER", "megatron")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Megatron FSDP asserts more than one.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32" if MEGATRON_FSDP in argv else "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # torch prints its C++ stack for every attempt to reach a store that has not started yet.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ["WORLD_SIZE"] = str(world_size)


def complete(argv: Sequence[str], platform: str) -> list[str]:
    """Return Megatron's flags with those added that recovery and the platform need; log what was added.

    Raises FlagError or cpu.UnsupportedError.
    """
    flags, added = engine.complete(argv)
    if platform == "cpu":
        flags, for_cpu = (flags, []) if engine.is_bridge() else cpu.adapt(flags)
        cpu.announce(for_cpu)
    if added:
        log(f"flags added for recovery: {' '.join(added)}")
    return flags


class _EarlyTerminationError(BaseException):
    """SIGTERM arrived before there was anything to save."""


def _stop_early(_number: int, _frame: object) -> NoReturn:
    raise _EarlyTerminationError


def _run_pod(argv: Sequence[str], settings: Settings) -> tuple[Ending, ProgressReport | None]:
    """Run the pod. Returns how it ends, and its last report unless it ended before. Raises
    _EarlyTerminationError.
    """
    try:
        _prepare_environment(settings.world_size, argv)
        if problem := engine.why_absent() or why_absent(settings.tracking):
            return Ending(ExitCode.UNSUPPORTED, problem), None
        flags = complete(argv, settings.platform)
        from megatron_trainer.launcher.pod import Pod

        return Pod(settings, flags, log).run()
    except (SettingError, FlagError) as error:
        return Ending(ExitCode.USAGE, str(error)), None
    except cpu.UnsupportedError as error:
        return Ending(ExitCode.UNSUPPORTED, str(error)), None
    except Exception as error:
        traceback.print_exc()
        code = ExitCode.WORKER_DIED if _may_pass(error) else ExitCode.INTERNAL
        return Ending(code, f"launcher error: {type(error).__name__}: {error}"), None


def _may_pass(error: Exception) -> bool:
    """Whether an error is of a volume or of the node (too many processes): a replacement may succeed."""
    return isinstance(error, OSError) or (isinstance(error, RuntimeError) and str(error) == _NO_THREAD)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the pod to its end, write the termination message and exit with a code of the contract."""
    words = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(words):
        print(HELP)
        sys.exit(0)
    settings, report = None, None
    # PID 1 ignores SIGTERM without a handler: a pod deleted now would stay for its whole grace period.
    signal.signal(signal.SIGTERM, _stop_early)
    name_secret_variables()
    try:
        settings = pod_settings.read()
        ending, report = _run_pod(words, settings)
    except _EarlyTerminationError:
        ending = Ending(ExitCode.TERMINATED, "SIGTERM before the first rank was started: nothing to save")
    except SettingError as error:
        ending = Ending(ExitCode.USAGE, str(error))
    if settings is not None:
        write(settings.termination_log, ending, settings.node_rank, report)
    log(f"{REASONS[ending.code]} (exit {int(ending.code)}): {ending.message}")
    sys.stdout.flush()
    finish_streams()
    # A thread that writes to a volume that does not respond may never return: do not wait for it.
    if threading.active_count() > 1:
        os._exit(int(ending.code))
    sys.exit(int(ending.code))


if __name__ == "__main__":
    main()
