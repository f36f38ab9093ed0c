"""A rank of a run without this project's launcher: what `torchrun` starts in bench.recovery's baselines.

It is mounted into the trainer image and runs the same Megatron loop on the same flags. Which checkpoint a
start takes is Megatron's own tracker's to say.
"""

import os
import sys

from megatron_trainer.flags import complete
from megatron_trainer.platform import cpu

if __name__ == "__main__":
    cpu.install()
    from megatron_trainer import train

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    flags, _ = cpu.adapt(complete(sys.argv[1:])[0])
    sys.exit(train.run_rank(flags))
