"""A launcher's part in the lease of a directory: `python -m tests.trainer.holder SAVE NAME [freeze]`.

Acquires the lease, waits for the fence and then appends NAME to SAVE/writes until another launcher has taken
the lease. With `freeze` it stops by SIGSTOP while it acquires, when the directory has no holder.
"""

import os
import signal
import sys
import time
from pathlib import Path

from megatron_trainer import flags, settings
from megatron_trainer.checkpoints.checkpoint_lease import CheckpointLease
from megatron_trainer.checkpoints.checkpoint_manager import CheckpointManager
from megatron_trainer.telemetry.status import Status

WRITES = "writes"


def freeze_once() -> None:
    """Stop at the next fsync, which is that of the new lease."""
    fsync = os.fsync

    def freeze(file: int) -> None:
        os.fsync = fsync
        os.kill(os.getpid(), signal.SIGSTOP)
        fsync(file)

    os.fsync = freeze  # type: ignore[assignment]


def main(save: Path, name: str, *options: str) -> None:
    lease = CheckpointLease(save, name, "run")
    checkpoints = CheckpointManager(
        settings.read({}),
        flags.read(["--save", str(save)]),
        Status(0, None),
        None,
        lease,
        lambda: False,
        print,
    )
    if "freeze" in options:
        freeze_once()
    lease.acquire()
    lease.await_fence()
    checkpoints.watch()
    with (save / WRITES).open("a") as file:
        while checkpoints.fenced is None:
            print(name, file=file, flush=True)
            time.sleep(0.02)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
