"""kopf's storages, without content: handlers of events need neither the last handled state nor progress.

By default kopf copies every object of every event several times to compare it with that state. That was half
of the operator's processor time while runs start.
"""

from typing import Any

import kopf


class NoDiffBase(kopf.DiffBaseStorage):
    """An object's state has nothing that could differ."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        """Nothing of the object."""
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        """The same, so that kopf finds no difference to describe."""
        return kopf.BodyEssence()

    def store(self, **_: Any) -> None:
        """Store nothing."""


class NoProgress(kopf.ProgressStorage):
    """Handlers of events are not retried, so they have no progress."""

    def fetch(self, **_: Any) -> None:
        """No progress."""

    def store(self, **_: Any) -> None:
        """Store nothing."""

    def purge(self, **_: Any) -> None:
        """Nothing is stored."""

    def touch(self, **_: Any) -> None:
        """Write nothing."""

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        """The state itself: it has no progress to remove."""
        return essence
