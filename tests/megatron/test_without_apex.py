"""Functions that delay weight gradients start on the project's image, which has no Apex."""

from collections.abc import Iterator

import cases
import pytest
from stages import Megatron

OF_THE_OPTIMIZER = ("--main-grads-dtype", "--exp-avg-dtype", "--exp-avg-sq-dtype")
"""Flags with a value of the precision-aware optimizer, which Megatron makes with Transformer Engine alone."""


def with_usual_optimizer(words: list[str]) -> Iterator[str]:
    left = iter(words)
    for word in left:
        if word in OF_THE_OPTIMIZER:
            next(left)
        elif word != "--use-precision-aware-optimizer":
            yield word


@pytest.mark.parametrize("name", cases.delayed())
def test_a_function_that_delays_weight_gradients_starts(megatron: Megatron, name: str) -> None:
    case = cases.build(name, cases.delayed()[name], packages=())
    assert "--no-gradient-accumulation-fusion" in case.trainer_words
    megatron.start([*with_usual_optimizer(case.trainer_words)], case.world_size)
