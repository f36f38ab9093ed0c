"""Noise of diffusion models: another for each data-parallel rank, and the same again after a resume.

Megatron-Bridge seeds data-parallel ranks alike: all would add one noise to their samples, at the same times.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from megatron.core import parallel_state


class RankNoise:
    """A training step whose random numbers follow from the seed, the iteration, the micro batch and the rank.

    Ranks of one data-parallel rank, which share its samples, draw the same. Evaluation draws from a stream of
    its own, so that a run that resumes in front of one goes on as before.
    """

    def __init__(self, step: Callable[..., Any], seed: int) -> None:
        self._step, self._seed = step, seed
        self._of: tuple[int, bool] | None = None
        self._micro_batch = 0

    def __call__(self, state: Any, data_iterator: Any, model: Any) -> Any:
        """Return what Bridge's loop takes of a micro batch."""
        of = (int(state.train_state.step), torch.is_grad_enabled())
        self._micro_batch = self._micro_batch + 1 if of == self._of else 0
        self._of = of
        parts = [self._seed, *map(int, of), self._micro_batch, parallel_state.get_data_parallel_rank()]
        seed = int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))
        on_gpu = torch.cuda.is_available()
        with torch.random.fork_rng([torch.cuda.current_device()] if on_gpu else []):
            torch.random.default_generator.manual_seed(seed)
            if on_gpu:
                torch.cuda.manual_seed(seed)
            return self._step(state, data_iterator, model)
