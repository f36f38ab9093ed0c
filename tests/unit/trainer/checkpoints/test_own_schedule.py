"""Which learning rates, weight decay and coefficients of the optimizer a saved group of parameters gets."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from megatron_trainer.checkpoints import own_schedule
from megatron_trainer.checkpoints.own_schedule import with_settings

OTHERS = ("wd_mult", "is_decoupled_lr")


def group(rate: float, *, decay: float = 1.0, decoupled: bool = False, step: int = 0) -> dict[str, Any]:
    return {"max_lr": rate, "min_lr": 0.0, "wd_mult": decay, "is_decoupled_lr": decoupled, "step": step}


def test_groups_have_the_rate_of_the_run_and_the_rest_of_the_checkpoint() -> None:
    saved = [group(2.0, step=7), group(2.0, decay=0.0, step=7)]
    current = [group(1.0, decay=0.0), group(1.0)]
    assert with_settings(saved, current, OTHERS) == [group(1.0, step=7), group(1.0, decay=0.0, step=7)]


def test_a_rate_of_its_own_stays_that_of_its_group() -> None:
    saved = [group(2.0, step=7), group(5.0, decoupled=True, step=7)]
    current = [group(1.0), group(6.0, decoupled=True)]
    assert with_settings(saved, current, OTHERS) == [group(1.0, step=7), group(6.0, decoupled=True, step=7)]


@pytest.mark.parametrize("current", [[group(5.0), group(1.0)], [group(1.0), group(5.0)]])
def test_of_groups_that_differ_by_their_rates_alone_the_one_that_changed_is_found(
    current: list[dict[str, Any]],
) -> None:
    saved = [group(2.0, step=7), group(5.0, step=8)]
    assert with_settings(saved, current, OTHERS) == [group(1.0, step=7), group(5.0, step=8)]


def test_groups_that_do_not_correspond_are_left_to_megatron() -> None:
    saved = [group(2.0), group(3.0)]
    assert with_settings(saved, [group(1.0)], OTHERS) == saved


def test_bounds_that_only_the_checkpoint_has_are_left_out() -> None:
    saved = [group(2.0) | {"start_wd": 0.1, "end_wd": 0.2}]
    assert with_settings(saved, [group(1.0)], OTHERS) == [group(1.0)]


OLD: dict[str, Any] = {"betas": (0.9, 0.95), "eps": 1e-8}
NEW: dict[str, Any] = {"betas": (0.8, 0.99), "eps": 1e-6}


@pytest.mark.parametrize("rate", [1.0, 2.0], ids=["the same rate", "another rate"])
def test_every_group_has_the_coefficients_of_the_run(rate: float) -> None:
    saved = [group(2.0, step=7) | OLD, group(2.0, decay=0.0, step=7) | OLD]
    current = [group(rate, decay=0.0) | NEW, group(rate) | NEW]
    followed = [group(rate, step=7) | NEW, group(rate, decay=0.0, step=7) | NEW]
    assert with_settings(saved, current, OTHERS) == followed


def test_groups_with_an_epsilon_of_their_own_keep_it() -> None:
    saved = [group(2.0) | OLD, group(5.0) | OLD | {"eps": 1e-9}]
    current = [group(5.0) | NEW | {"eps": 1e-7}, group(2.0) | NEW]
    assert with_settings(saved, current, OTHERS) == [group(2.0) | NEW, group(5.0) | NEW | {"eps": 1e-7}]


def test_the_momentum_is_that_of_the_run() -> None:
    assert with_settings([group(2.0) | {"momentum": 0.9}], [group(2.0) | {"momentum": 0.95}], OTHERS) == [
        group(2.0) | {"momentum": 0.95}
    ]


class Whole:
    @staticmethod
    def _filter_and_reorder_param_groups(current: list[Any], saved: list[Any]) -> list[Any]:
        return saved[: len(current)]


class Distributed:
    def __init__(self, groups: list[dict[str, Any]]) -> None:
        self.optimizer = SimpleNamespace(param_groups=groups)
        self.loaded: list[dict[str, Any]] = []

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.loaded = state_dict["optimizer"]["param_groups"]

    def _param2group_meta_to_param_groups(self, metadata: Any, current: Any) -> list[dict[str, Any]]:
        return [metadata["weight"] for _ in current]


def test_every_optimizer_of_megatron_loads_the_coefficients_of_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package, module, sharded = (ModuleType(name) for name in ("package", "optimizer", "distrib_optimizer"))
    names = {"param_group_identifier_keys": ("max_lr", *OTHERS), "MegatronOptimizer": Whole}
    vars(module).update(names)
    vars(package).update({"optimizer": module})
    vars(sharded).update({"DistributedOptimizer": Distributed})
    name = "megatron.core.optimizer"
    modules = {name: package, f"{name}.optimizer": module, f"{name}.distrib_optimizer": sharded}
    for each in ("megatron", "megatron.core"):
        modules[each] = ModuleType(each)
    for each, fake in modules.items():
        monkeypatch.setitem(sys.modules, each, fake)
    own_schedule.install()

    saved, current, expected = [group(2.0, step=7) | OLD], [group(2.0) | NEW], [group(2.0, step=7) | NEW]
    distributed: Any = Distributed(current)
    distributed.load_state_dict({"optimizer": {"param_groups": saved}})
    assert distributed.loaded == expected
    assert distributed._param2group_meta_to_param_groups({"weight": saved[0]}, current) == expected
    assert Whole._filter_and_reorder_param_groups(current, saved) == expected
