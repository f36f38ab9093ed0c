"""What `helm test` finds: a leader that renews its Lease, or why there is none."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from megatron_operator.controller.api_client import ApiError
from megatron_operator.controller.leader_check import NoLeaderError, check


class Leases:
    """An API server with one Lease, of which each read finds the next state."""

    def __init__(self, *states: tuple[str, str] | None, refuses: bool = False) -> None:
        self._states = list(states)
        self._refuses = refuses
        self.listed: list[str | None] = []

    async def pages(self, _resource: Any, namespace: str | None) -> AsyncIterator[list[Any]]:
        self.listed.append(namespace)
        if self._refuses:
            raise ApiError(403, "Forbidden", "megatronrecipes is forbidden")
        yield []

    async def get(self, _resource: Any, _namespace: str, _name: str) -> dict[str, Any] | None:
        state = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        if state is None:
            return None
        return {"metadata": {"resourceVersion": state[1]}, "spec": {"holderIdentity": state[0]}}


def found(leases: Leases, recipes_of: str | None = None) -> str:
    async def no_sleep(_seconds: float) -> None:
        """Return at once."""

    return asyncio.run(check(leases, "system", "lease", recipes_of, no_sleep))  # type: ignore[arg-type]


def test_a_leader_that_renews_its_lease_is_found() -> None:
    leases = Leases(None, ("", "1"), ("a", "2"), ("a", "2"), ("a", "3"))
    assert found(leases, "research") == "a"
    assert leases.listed == ["research"]


def test_a_new_leader_must_renew_as_well() -> None:
    """The version also changes when another one takes the Lease, and may then be gone."""
    with pytest.raises(NoLeaderError, match="b holds it and does not renew it for 60 s"):
        found(Leases(("a", "1"), ("b", "2")))


def test_without_a_holder_the_message_names_the_lease() -> None:
    with pytest.raises(NoLeaderError, match="Lease system/lease: nobody holds it"):
        found(Leases(None))


def test_missing_rights_are_an_error() -> None:
    with pytest.raises(ApiError, match="megatronrecipes is forbidden"):
        found(Leases(("a", "1"), ("a", "2"), refuses=True))
