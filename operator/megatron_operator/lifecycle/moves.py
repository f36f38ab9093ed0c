"""Runs that move off nodes: the places that their pods are about to take are no longer free for others."""

from typing import Final

from megatron_operator.lifecycle.status_builder import RecipeKey

LONGEST_MOVE: Final = 1800.0
"""Seconds for which a move is expected to end: its pods save a checkpoint first."""


class Moves:
    """The moves that one operator has decided on. They are not stored, as growths are not."""

    def __init__(self) -> None:
        self._moves: dict[RecipeKey, tuple[int, float]] = {}
        self.decided = 0
        """Number of moves so far: with the same number the places free for a run are the same."""

    def add(self, run: RecipeKey, pods: int, now: float) -> None:
        """`pods` pods of `run` will need other places; `now` is in seconds since the epoch."""
        self._moves[run] = pods, now
        self.decided += 1

    def forget(self, run: RecipeKey) -> bool:
        """The pods of `run` have their places, or need none; returns whether it was moving."""
        return self._moves.pop(run, None) is not None

    def of_others(self, run: RecipeKey, now: float) -> int:
        """Number of pods of other runs that are on their way; `now` is in seconds since the epoch."""
        self._moves = {key: entry for key, entry in self._moves.items() if now - entry[1] < LONGEST_MOVE}
        return sum(pods for key, (pods, _) in self._moves.items() if key != run)
