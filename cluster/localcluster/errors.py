"""The one error that reaches a user: what is wrong and what mends it, never a traceback."""

from __future__ import annotations


class ClusterError(Exception):
    """A step failed; the text names it and the mend."""


class MissingRequirements(ClusterError):
    """The machine lacks something that the profile needs.

    `missing` has one line for each thing.
    """

    def __init__(self, profile: str, missing: list[str]) -> None:
        self.missing = missing
        lines = "\n".join(f"  - {line}" for line in missing)
        super().__init__(f"profile {profile} cannot run on this machine:\n{lines}")
