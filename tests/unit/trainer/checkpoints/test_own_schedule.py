"""Which bounds of learning rate and weight decay a saved group of parameters gets."""

from typing import Any

import pytest
from megatron_trainer.checkpoints.own_schedule import with_bounds

OTHERS = ("wd_mult", "is_decoupled_lr")


def group(rate: float, *, decay: float = 1.0, decoupled: bool = False, step: int = 0) -> dict[str, Any]:
    return {"max_lr": rate, "min_lr": 0.0, "wd_mult": decay, "is_decoupled_lr": decoupled, "step": step}


def test_groups_have_the_rate_of_the_run_and_the_rest_of_the_checkpoint() -> None:
    saved = [group(2.0, step=7), group(2.0, decay=0.0, step=7)]
    current = [group(1.0, decay=0.0), group(1.0)]
    assert with_bounds(saved, current, OTHERS) == [group(1.0, step=7), group(1.0, decay=0.0, step=7)]


def test_a_rate_of_its_own_stays_that_of_its_group() -> None:
    saved = [group(2.0, step=7), group(5.0, decoupled=True, step=7)]
    current = [group(1.0), group(6.0, decoupled=True)]
    assert with_bounds(saved, current, OTHERS) == [group(1.0, step=7), group(6.0, decoupled=True, step=7)]


@pytest.mark.parametrize("current", [[group(5.0), group(1.0)], [group(1.0), group(5.0)]])
def test_of_groups_that_differ_by_their_rates_alone_the_one_that_changed_is_found(
    current: list[dict[str, Any]],
) -> None:
    saved = [group(2.0, step=7), group(5.0, step=8)]
    assert with_bounds(saved, current, OTHERS) == [group(1.0, step=7), group(5.0, step=8)]


def test_groups_that_do_not_correspond_are_left_to_megatron() -> None:
    saved = [group(2.0), group(3.0)]
    assert with_bounds(saved, [group(1.0)], OTHERS) == saved


def test_bounds_that_only_the_checkpoint_has_are_left_out() -> None:
    saved = [group(2.0) | {"start_wd": 0.1, "end_wd": 0.2}]
    assert with_bounds(saved, [group(1.0)], OTHERS) == [group(1.0)]
