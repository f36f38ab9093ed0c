"""Waits of these tests."""

from collections.abc import Callable

from testkit.waiting import DEADLINE, wait_until


def eventually[T](probe: Callable[[], T], what: str | Callable[[], str], seconds: float = DEADLINE) -> T:
    """The first truthy result of `probe`. Raises TimeoutError."""
    return wait_until(what, lambda: probe() or None, seconds)
