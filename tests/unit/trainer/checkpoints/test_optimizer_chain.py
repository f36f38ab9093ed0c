"""The optimizer of a checkpoint whose ranks had another number of optimizers."""

from typing import Any

from megatron_trainer.checkpoints.optimizer_chain import adapted

KIND = "param_state_sharding_type"


def group(decay: float, *, of_experts: bool) -> dict[str, Any]:
    return {"wd_mult": decay, "is_expert_parallel": of_experts, "step": 4, "lr": 0.1}


def saved(*, of_experts: bool) -> dict[str, Any]:
    """What the rank that saved had of one optimizer besides tensors."""
    groups = [group(decay, of_experts=of_experts) for decay in (0.0, 1.0)]
    return {"optimizer": {"param_groups": groups}, KIND: "fully_reshardable"}


def settings(state: dict[str, Any]) -> set[tuple[float, bool]]:
    groups = state["optimizer"]["param_groups"]
    return {(each["wd_mult"], each["is_expert_parallel"]) for each in groups if each["step"] == 4}


EVERY = {(decay, of_experts) for decay in (0.0, 1.0) for of_experts in (False, True)}


def test_one_optimizer_gets_the_groups_of_two() -> None:
    state = {"param_state": "own", 0: saved(of_experts=False), 1: saved(of_experts=True)}
    found = adapted(state, 1)
    assert sorted(found) == ["optimizer", "param_state", KIND]
    assert found["param_state"] == "own"
    assert settings(found) == EVERY


def test_two_optimizers_get_the_groups_of_one_those_of_experts_too() -> None:
    state: dict[Any, Any] = {number: {"param_state": f"own {number}"} for number in range(2)}
    found = adapted(state | saved(of_experts=False) | {"grad_scaler": {"scale": 8}}, 2)
    assert sorted(found) == [0, 1]
    for number in range(2):
        assert found[number]["param_state"] == f"own {number}"
        assert found[number][KIND] == "fully_reshardable"
        assert found[number]["grad_scaler"] == {"scale": 8}
        assert settings(found[number]) == EVERY


def test_what_megatron_expects_is_left_as_it_is() -> None:
    one = saved(of_experts=False) | {"param_state": "own"}
    two = {0: saved(of_experts=False), 1: saved(of_experts=True)}
    assert adapted(one, 1) is one
    assert adapted(two, 2) is two


def test_a_state_without_an_optimizer_is_left_to_megatron_to_refuse() -> None:
    state = {0: {"param_state": "own"}}
    assert adapted(state, 1) is state
