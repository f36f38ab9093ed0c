"""Errors that are shown to the user without a traceback: each names the problem and the remedy."""

from __future__ import annotations


class ClusterError(Exception):
    """A step failed; the message names it and the remedy."""


class MissingRequirementsError(ClusterError):
    """The machine does not meet the requirements of a profile; `missing` has one line for each."""

    def __init__(self, profile: str, missing: list[str]) -> None:
        self.missing = missing
        lines = "\n".join(f"  - {line}" for line in missing)
        super().__init__(f"profile {profile} cannot run on this machine:\n{lines}")
