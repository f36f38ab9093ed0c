"""Has a resumed run follow its own learning rates, weight decay and coefficients of the optimizer.

Megatron Core 0.19.2 keeps them in each group of parameters, finds a saved group by the bounds of learning
rate and weight decay, and takes the settings of the saved one: after an edit of the learning rate its load
fails, or, with Megatron FSDP, the checkpoint's learning rate is used, and an edit of Adam's betas is ignored.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import Any

_BOUNDS = ("max_lr", "min_lr", "start_wd", "end_wd")
_COEFFICIENTS = ("betas", "eps", "momentum")

type _Group = dict[str, Any]


def install() -> None:
    """Have every load of an optimizer keep the settings of this run; call it once."""
    from megatron.core.optimizer import optimizer
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    others = [key for key in optimizer.param_group_identifier_keys if key not in _BOUNDS]
    distributed: Any = DistributedOptimizer
    load = distributed.load_state_dict
    of_fsdp = distributed._param2group_meta_to_param_groups
    whole: Any = optimizer.MegatronOptimizer
    reorder = whole._filter_and_reorder_param_groups

    @functools.wraps(load)
    def load_distributed(self: Any, state_dict: _Group) -> None:
        if (saved := state_dict.get("optimizer")) is not None:
            saved["param_groups"] = with_settings(saved["param_groups"], self.optimizer.param_groups, others)
        load(self, state_dict)

    @functools.wraps(of_fsdp)
    def groups_of_fsdp(self: Any, metadata: Any, current: list[_Group], *args: Any, **kwargs: Any) -> Any:
        found = of_fsdp(self, metadata, current, *args, **kwargs)
        return [_followed(saved, own) for saved, own in zip(found, current, strict=True)]

    @functools.wraps(reorder)
    def reorder_whole(current_groups: list[_Group], state_dict_groups: list[_Group]) -> Any:
        return reorder(current_groups, with_settings(state_dict_groups, current_groups, others))

    distributed.load_state_dict = load_distributed
    distributed._param2group_meta_to_param_groups = groups_of_fsdp
    whole._filter_and_reorder_param_groups = staticmethod(reorder_whole)


def with_settings(saved: Sequence[_Group], current: Sequence[_Group], others: Sequence[str]) -> list[_Group]:
    """The saved groups with the bounds and coefficients of this run's groups.

    Groups belong together whose settings `others` are equal. Of several of them those with unchanged bounds
    keep them, and the rest are in the order in which Megatron made them.
    """
    found = []
    for group in saved:
        of_run = _distinct(each for each in current if _values(each, others) == _values(group, others))
        of_saved = _distinct(each for each in saved if _values(each, others) == _values(group, others))
        kept = of_run.keys() & of_saved.keys()
        new = [each for bounds, each in of_run.items() if bounds not in kept]
        old = [bounds for bounds in of_saved if bounds not in kept]
        bounds = _values(group, _BOUNDS)
        if bounds in kept:
            found.append(_followed(group, of_run[bounds]))
        elif len(new) == len(old):
            found.append(_followed(group, new[old.index(bounds)]))
        else:
            found.append(group)
    return found


def _followed(group: _Group, own: _Group) -> _Group:
    """The saved group with the bounds and coefficients of `own`."""
    rest = {key: value for key, value in group.items() if key not in _BOUNDS}
    return rest | {key: own[key] for key in (*_BOUNDS, *_COEFFICIENTS) if key in own}


def _distinct(groups: Iterable[_Group]) -> dict[tuple[Any, ...], _Group]:
    """The first group of each combination of bounds, in order."""
    found: dict[tuple[Any, ...], _Group] = {}
    for group in groups:
        found.setdefault(_values(group, _BOUNDS), group)
    return found


def _values(group: _Group, names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(group.get(name) for name in names)
