"""Resumes from checkpoints without optimizer or random states, with the place in the schedule.

Megatron Core 0.19.2 takes `--no-save-optim` and `--no-save-rng` of the run for what its checkpoint lacks: its
load fails over a checkpoint that has the states of the optimizer, and over one that lacks them unless
`--no-load-optim` is given too. With the optimizer it leaves out how far the learning rate is, as
Megatron-Bridge 0.6.2 does, and a resume would warm up again. A run may be edited between two checkpoints.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

_SCHEDULE = "opt_param_scheduler"
_PLACE = 3
"""Of the schedule among the arguments of both `generate_state_dict`."""


class LeftOutStates:
    """What the checkpoint lacks that a rank loads."""

    def __init__(self) -> None:
        self._schedule: dict[str, Any] | None = None

    @staticmethod
    def add_schedule(inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Around `generate_state_dict`: have a checkpoint without optimizer states keep the schedule."""
        state = inner(*args, **kwargs)
        schedule = args[_PLACE] if len(args) > _PLACE else kwargs.get(_SCHEDULE)
        if schedule is not None and _SCHEDULE not in state:
            state[_SCHEDULE] = schedule.state_dict()
        return state

    def find_schedule(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Around `_load_base_checkpoint`: remember the schedule of the checkpoint."""
        found = inner(*args, **kwargs)
        if found[0] is not None:
            self._schedule = found[0].get(_SCHEDULE)
        return found

    def follow_schedule(self, schedule: Any) -> None:
        """After a load without the optimizer: set its rates to the checkpoint's place in the schedule."""
        if self._schedule is None:
            print(
                "the checkpoint has no place in the schedule of the learning rate, which begins again",
                flush=True,
            )
            return
        schedule.load_state_dict(self._schedule)


@contextlib.contextmanager
def reading_all(args: Any) -> Iterator[None]:
    """Have Megatron's own load read what the checkpoint has, whatever the run saves next."""
    own = args.no_save_optim, args.no_save_rng
    args.no_save_optim = args.no_save_rng = False
    try:
        yield
    finally:
        args.no_save_optim, args.no_save_rng = own


def skip_left_out(args: Any, state: dict[str, Any]) -> None:
    """Have Megatron's own load not ask for what the checkpoint of `state` was saved without."""
    saved = state.get("args")
    for what in ("optim", "rng"):
        if getattr(saved, f"no_save_{what}", False):
            setattr(args, f"no_load_{what}", True)
