"""Stand-in for the readers of nodes and progress."""

from typing import Any


class Silent:
    """There is nothing to read."""

    async def of(self, *_: Any) -> dict[str, Any]:
        return {}

    def reading(self, _: Any) -> None:
        return None

    def forget(self, _: Any) -> None:
        return None

    silence = reading
