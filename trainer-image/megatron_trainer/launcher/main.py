"""`megatron-train`: the pod's entrypoint. Its arguments are Megatron's flags; its settings come by
environment.

Kept light at import and guarded below: helpers that Megatron spawns import this module again.
"""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from megatron_contract.environment import SETTINGS
from megatron_contract.exit_codes import REASONS, ExitCode

from megatron_trainer.launcher import settings as pod_settings
from megatron_trainer.launcher.flags import BadFlags
from megatron_trainer.launcher.flags import complete as complete_flags
from megatron_trainer.launcher.settings import BadSetting
from megatron_trainer.launcher.termination import Ending, write
from megatron_trainer.platform import cpu

HELP = f"""usage: megatron-train MEGATRON_FLAG ...

Run this pod's ranks of a Megatron Core training run, from the newest whole checkpoint to the last iteration.
All arguments are flags of Megatron 0.19.2 (`megatron args` prints those of a recipe).

Settings come by environment. The training-operator sets PET_NNODES, PET_NODE_RANK, PET_NPROC_PER_NODE,
MASTER_ADDR and MASTER_PORT; further there are
{"\n".join(f"  {name:28} {text}" for name, text in SETTINGS.items())}

Exit codes: {", ".join(f"{int(code)} {reason}" for code, reason in REASONS.items())}
"""


def log(text: str) -> None:
    """One line of the launcher in the pod's log."""
    print(f"megatron-train: {text}", file=sys.stderr, flush=True)


def _prepare_environment(world_size: int) -> None:
    """Caches and a home that any user can write on a read-only root; one thread a rank by default."""
    temporary = Path(os.environ.setdefault("TMPDIR", "/tmp"))
    if not os.access(os.environ.get("HOME", "/"), os.W_OK):
        os.environ["HOME"] = str(temporary)
    for name, folder in (
        ("XDG_CACHE_HOME", "cache"),
        ("TORCHINDUCTOR_CACHE_DIR", "inductor"),
        ("TRITON_CACHE_DIR", "triton"),
        ("HF_HOME", "huggingface"),
    ):
        os.environ.setdefault(name, str(temporary / folder))
    # The user of a pod need not be in /etc/passwd; torch asks for a name.
    os.environ.setdefault("USER", "megatron")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # torch prints its C++ stack for every attempt to reach a store that is not there yet.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ["WORLD_SIZE"] = str(world_size)


def flags_of(argv: Sequence[str], platform: str) -> list[str]:
    """Megatron's flags as they will be used. Logs what was added. Raises BadFlags or cpu.Unsupported."""
    flags, added = complete_flags(argv)
    if platform == "cpu":
        flags, for_cpu = cpu.adapt(flags)
        cpu.announce(for_cpu)
    if added:
        log(f"flags added for recovery: {' '.join(added)}")
    return flags


class _StoppedEarly(BaseException):
    """SIGTERM came before there was anything to save."""


def _stop_early(_number: int, _frame: object) -> NoReturn:
    raise _StoppedEarly


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the pod to its end and exit with what the contract says."""
    words = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(words):
        print(HELP)
        sys.exit(0)
    settings = None
    # PID 1 without a handler does not hear SIGTERM: a pod deleted now would stay for its grace period.
    signal.signal(signal.SIGTERM, _stop_early)
    try:
        settings = pod_settings.read()
        _prepare_environment(settings.world_size)
        flags = flags_of(words, settings.platform)
        from megatron_trainer.launcher.pod import Pod

        ending, iteration, checkpoint = Pod(settings, flags, log).run()
    except _StoppedEarly:
        ending = Ending(ExitCode.TERMINATED, "SIGTERM before the first rank was started: nothing to save")
        iteration, checkpoint = None, None
    except (BadSetting, BadFlags) as error:
        ending, iteration, checkpoint = Ending(ExitCode.USAGE, str(error)), None, None
    except cpu.Unsupported as error:
        ending, iteration, checkpoint = Ending(ExitCode.UNSUPPORTED, str(error)), None, None
    except Exception as error:
        traceback.print_exc()
        text = f"a fault of the launcher: {type(error).__name__}: {error}"
        ending, iteration, checkpoint = Ending(ExitCode.INTERNAL, text), None, None
    if settings is not None:
        write(settings.termination_log, ending, settings.node_rank, iteration, checkpoint)
    log(f"{REASONS[ending.code]} (exit {int(ending.code)}): {ending.message}")
    sys.stdout.flush()
    # A client of a lost store may hang in torch for ever: do not wait for its thread.
    if threading.active_count() > 1:
        os._exit(int(ending.code))
    sys.exit(int(ending.code))


if __name__ == "__main__":
    main()
