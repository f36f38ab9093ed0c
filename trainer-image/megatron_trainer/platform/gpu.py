"""The gpu platform: what depends on the packages of the image and on the devices of the pod."""

from collections.abc import Sequence


def adapt(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return Megatron's flags with those added that the installed packages require, and the added words.

    Megatron fuses the accumulation of gradients by default, with a kernel of Apex that its output layer
    requires even where all others are Transformer Engine's (`megatron.core.tensor_parallel.layers`). Apex is
    on no package index. Imports Megatron.
    """
    from megatron.core.tensor_parallel import layers

    added = []
    flag = "--no-gradient-accumulation-fusion"
    if not layers._grad_accum_fusion_available and flag not in argv:
        added.append(flag)
    return [*argv, *added], added
