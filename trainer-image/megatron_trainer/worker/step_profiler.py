"""Records some iterations of a rank with torch's profiler.

Megatron's own `--use-pytorch-profiler` counts steps from the start of the process, so that after a restart
it records other iterations than those asked for, or none.
"""

import sys
from pathlib import Path

import torch
from megatron_contract.environment import PROFILE_DIR

from megatron_trainer.settings import ProfileWindow


class StepProfiler:
    """The profiler of one rank. After a restart inside the window it records the rest."""

    def __init__(self, window: ProfileWindow | None, rank: int) -> None:
        self._window = window if window is not None and rank in window.ranks else None
        self._rank = rank
        self._first = 0
        self._profile: torch.profiler.profile | None = None

    def begin(self, iteration: int) -> None:
        """To be called before the step of `iteration`."""
        window = self._window
        if window is not None and self._profile is None and window.first <= iteration <= window.last:
            self._first = iteration
            self._profile = torch.profiler.profile()
            self._profile.start()

    def ends(self, iteration: int) -> bool:
        """Whether a trace is to be written after the step of `iteration`."""
        return self._window is not None and self._profile is not None and iteration >= self._window.last

    def write(self, iteration: int, save: str | None) -> None:
        """Write the trace up to `iteration` into `save`, or the working directory.

        A run does not fail for lack of it: an error is printed.
        """
        assert self._profile is not None, "nothing is recorded"
        recorded, self._profile = self._profile, None
        recorded.stop()
        name = f"rank-{self._rank}-iterations-{self._first}-{iteration}.json.gz"
        target = Path(save or ".") / PROFILE_DIR / name
        partial = target.with_name(f".partial-{name}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            recorded.export_chrome_trace(str(partial))
            partial.replace(target)
        except (OSError, RuntimeError) as error:
            print(f"megatron-train: rank {self._rank}: no trace: {error}", file=sys.stderr, flush=True)
            return
        print(f"megatron-train: rank {self._rank}: wrote {target}", flush=True)
