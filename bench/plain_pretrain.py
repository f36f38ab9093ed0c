"""A rank without this project's launcher, started by `torchrun` in the baselines of bench.recovery.

The script is mounted into the trainer image. It runs the same Megatron loop with the same flags and records
its iterations in the same way. Megatron's own tracker selects the checkpoint, and the exit code is
Megatron's.
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
    from megatron_trainer.checkpoints.async_checkpoint_writers import install
    from megatron_trainer.health.loss_spikes import LossSpikeDetector
    from megatron_trainer.telemetry.reporter import Reporter
    from megatron_trainer.worker import dataset_helpers, gpt
    from megatron_trainer.worker.arguments import parse
    from megatron_trainer.worker.megatron_hooks import MegatronHooks

    flags, _ = cpu.adapt(sys.argv[1:])
    args = parse(flags)
    MegatronHooks(Reporter(), None, LossSpikeDetector(None, 1, None)).install()
    dataset_helpers.skip_build()
    # Megatron's own writers are new interpreters, which start slower and lack the CPU replacements.
    install(flags, lambda _: os._exit(1), forked=True)
    pretrain(
        pretrain_cfg_container_from_args(args, gpt.model_config(args)),
        gpt.datasets,
        ModelType.encoder_or_decoder,
        gpt.forward_step,
        get_embedding_ranks=gpt.embedding_ranks,
    )
