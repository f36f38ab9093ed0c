"""Random numbers of the training steps of diffusion models."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from megatron.core import parallel_state
from megatron_trainer.bridge.rank_noise import RankNoise


def drawing(*_: Any) -> float:
    """A step that draws one number."""
    return float(torch.rand(()))


def draw(step: RankNoise, iteration: int) -> float:
    return float(step(SimpleNamespace(train_state=SimpleNamespace(step=iteration)), None, None))


@pytest.fixture(autouse=True)
def rank(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the data-parallel rank."""

    def set_rank(number: int) -> None:
        monkeypatch.setattr(parallel_state, "get_data_parallel_rank", lambda: number)

    set_rank(0)
    return set_rank


def test_ranks_iterations_and_micro_batches_draw_different_noise(rank: Any) -> None:
    drawn = []
    for number in range(2):
        rank(number)
        step = RankNoise(drawing, 7)
        drawn += [draw(step, iteration) for iteration in (3, 3, 4)]
    assert len({*drawn}) == 6


def test_a_resumed_run_draws_what_the_undisturbed_one_draws_also_behind_an_evaluation() -> None:
    undisturbed = RankNoise(drawing, 7)
    draw(undisturbed, 3)
    with torch.no_grad():
        evaluated = draw(undisturbed, 4)
    expected = draw(undisturbed, 4)

    assert draw(RankNoise(drawing, 7), 4) == expected != evaluated


def test_the_random_numbers_of_everything_else_are_not_disturbed() -> None:
    torch.manual_seed(1)
    expected = float(torch.rand(()))
    torch.manual_seed(1)
    draw(RankNoise(drawing, 7), 3)
    assert float(torch.rand(())) == expected
