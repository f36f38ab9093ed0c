"""Loads the optimizer of a checkpoint whose ranks had another number of optimizers.

Megatron Core 0.19.2 gives ranks whose stage has experts an optimizer of their own for these, unless the
expert and tensor parallel size are 1, and rank 0 saves what all optimizers have in common. Its load fails at
another expert parallel size, and where the first stage has dense layers alone. The tensors are saved by the
names of parameters, or as each rank's own, and are not affected.
"""

import functools
from collections.abc import Iterator
from typing import Any

from megatron.core.optimizer.optimizer import ChainedOptimizer

_COMMON, _GROUPS, _OF_EXPERTS = "optimizer", "param_groups", "is_expert_parallel"
_SHARED = ("grad_scaler", "param_state_sharding_type")


def install() -> None:
    """Have every load give each optimizer of a rank the state that it reads; call it once."""
    chain: Any = ChainedOptimizer
    inner = chain.load_state_dict

    @functools.wraps(inner)
    def load(self: Any, state_dict: Any) -> None:
        inner(self, adapted(state_dict, len(self.chained_optimizers)))

    chain.load_state_dict = load


def adapted(state: Any, count: int) -> Any:
    """The state of `count` optimizers of a rank, from what Megatron has read for them.

    `state` is that of one optimizer, or has one for each under its number: the tensors in the form of this
    rank, the groups of parameters in that of the rank which saved them.
    """
    if not isinstance(state, dict) or _is_complete(state, count):
        return state
    saved = [part for part in (state, *_numbered(state)) if _COMMON in part]
    if not saved:
        return state
    groups = list(_completed([group for part in saved for group in part[_COMMON][_GROUPS]]))
    common = {name: saved[0][name] for name in _SHARED if name in saved[0]}
    common[_COMMON] = {**saved[0][_COMMON], _GROUPS: groups}
    if count == 1:
        return {key: value for key, value in state.items() if not isinstance(key, int)} | common
    return {number: {**state.get(number, {}), **common} for number in range(count)}


def _is_complete(state: dict[Any, Any], count: int) -> bool:
    """Whether it has the form that Megatron expects of `count` optimizers."""
    if count == 1:
        return _COMMON in state and not any(isinstance(key, int) for key in state)
    return set(state) == set(range(count)) and all(_COMMON in part for part in state.values())


def _numbered(state: dict[Any, Any]) -> Iterator[dict[str, Any]]:
    yield from (state[key] for key in sorted(key for key in state if isinstance(key, int)))


def _completed(groups: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The groups, and for those that only experts or only others have a copy for the rest.

    Megatron finds a group by its settings, and keeps the parameters of its own.
    """
    yield from groups
    for of_experts in (True, False):
        if not any(bool(group.get(_OF_EXPERTS)) is of_experts for group in groups):
            yield from ({**group, _OF_EXPERTS: of_experts} for group in groups)
