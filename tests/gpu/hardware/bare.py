"""Megatron's `pretrain()` as one process without launcher and hooks, to compare runs of the trainer with.

python -m tests.gpu.hardware.bare gpu|cpu FLAG ...
"""

import os
import sys

from megatron_trainer.platform import cpu


def main(platform: str, *flags: str) -> None:
    """Train with Megatron's flags as the only rank. Megatron prints the times and losses."""
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    if platform == "cpu":
        cpu.install()
    from megatron.core.enums import ModelType
    from megatron.training import pretrain
    from megatron.training.argument_utils import pretrain_cfg_container_from_args
    from megatron_trainer.platform import gpu
    from megatron_trainer.worker import dataset_helpers, gpt
    from megatron_trainer.worker.arguments import model_config, parse

    dataset_helpers.skip_build()
    adapt = gpu.adapt if platform == "gpu" else cpu.adapt
    args = parse(adapt(list(flags))[0])
    pretrain(
        pretrain_cfg_container_from_args(args, model_config(args)),
        gpt.datasets,
        ModelType.encoder_or_decoder,
        gpt.forward_step,
        get_embedding_ranks=gpt.embedding_ranks,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
