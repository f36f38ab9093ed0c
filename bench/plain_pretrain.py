"""A rank of a run without this project's launcher: what `torchrun` starts in bench.recovery's baselines.

It is mounted into the trainer image and runs the same Megatron loop on the same flags and notes its steps in
the same way. Which checkpoint a start takes is Megatron's own tracker's to say, and Megatron's exit code is
the process's: nothing is translated.
"""

import os
import sys

from megatron_trainer.platform import cpu

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    cpu.install()
    from megatron.core.enums import ModelType
    from megatron.training import pretrain
    from megatron.training.argument_utils import pretrain_cfg_container_from_args
    from megatron_trainer.checkpoints.async_checkpoint_writers import fork_writers
    from megatron_trainer.health.loss_spikes import SpikeWatch
    from megatron_trainer.telemetry.reporter import Reporter
    from megatron_trainer.worker import gpt, main
    from megatron_trainer.worker.megatron_hooks import Observer

    flags, _ = cpu.adapt(sys.argv[1:])
    args = main.parse(flags)
    Observer(Reporter(), None, SpikeWatch(None, 1, None), lambda: None).install()
    # Megatron's own writers are fresh interpreters, slower to start and without a CPU's stand-ins.
    fork_writers(lambda _: os._exit(1))
    pretrain(
        pretrain_cfg_container_from_args(args, gpt.model_config(args)),
        gpt.datasets,
        ModelType.encoder_or_decoder,
        gpt.forward_step,
        get_embedding_ranks=gpt.embedding_ranks,
    )
