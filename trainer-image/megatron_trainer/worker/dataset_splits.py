"""The splits of a corpus that a run reads."""

from collections.abc import Sequence
from typing import Any

from megatron.core.datasets.utils import Split


def leave_out_unread(config: Any, samples: Sequence[int | None]) -> None:
    """Let Megatron's builder return None for validation and test sets of which a run reads 0 samples.

    `config` is a BlendedMegatronDatasetConfig, `samples` the sizes of its splits. Of several sources Megatron
    would blend a set without samples, which its sampler refuses; of a split without documents it would
    count epochs without an end.
    """
    for split, size in enumerate(samples):
        if split != Split.train.value and size == 0:
            if config.split_matrix is not None:
                config.split_matrix[split] = None
            if config.blend_per_split is not None:
                config.blend_per_split[split] = None
