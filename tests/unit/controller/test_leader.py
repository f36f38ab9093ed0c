"""Leader election: there is never more than one leader, and a leader that is gone is replaced in time."""

import asyncio
import heapq
import itertools
from copy import deepcopy
from typing import Any

import pytest
from megatron_operator.controller.api_client import ApiError
from megatron_operator.controller.api_resources import Resource
from megatron_operator.controller.fence import Fence
from megatron_operator.controller.leader import LeaderElector, LeaseLostError
from megatron_operator.controller.settings import LeaseTimes
from megatron_operator.lifecycle.object_metadata import Object

TIMES = LeaseTimes()
TAKEOVER = TIMES.lease_duration + TIMES.retry_period
"""Seconds after the death of a leader within which another one must have the Lease."""
STEP = 0.25


class Time:
    """A clock that the test moves; who sleeps wakes when it has come so far."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []
        self._numbers = itertools.count()

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        awake = asyncio.Event()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._numbers), awake))
        await awake.wait()

    async def step(self) -> None:
        self.now += STEP
        while self._sleepers and self._sleepers[0][0] <= self.now:
            heapq.heappop(self._sleepers)[2].set()
        for _ in range(20):
            await asyncio.sleep(0)


class LeaseServer:
    """The Lease with the API server's optimistic concurrency."""

    def __init__(self) -> None:
        self.lease: Object | None = None
        self._versions = itertools.count(1)

    def write(self, body: Object) -> Object:
        version = body["metadata"].get("resourceVersion")
        current = self.lease and self.lease["metadata"]["resourceVersion"]
        if version != current:
            raise ApiError(409, "Conflict", "the object has been modified")
        metadata = body["metadata"] | {"resourceVersion": str(next(self._versions))}
        self.lease = deepcopy(body) | {"metadata": metadata}
        return deepcopy(self.lease)


class Connection:
    """One candidate's connection to the server, and the wall clock of its machine."""

    def __init__(self, server: LeaseServer, wall: float) -> None:
        self.server, self.wall = server, wall
        self.cut = False
        self.loses_answers = False
        self.clock = self

    def now(self) -> float:
        return self.wall

    async def get(self, _resource: Resource, _namespace: str, _name: str) -> Object | None:
        self._require()
        return deepcopy(self.server.lease)

    async def create(self, _resource: Resource, body: Object) -> Object:
        return await self.replace(_resource, body)

    async def replace(self, _resource: Resource, body: Object) -> Object:
        self._require()
        await asyncio.sleep(0)  # another candidate may write between its read and this write
        written = self.server.write(body)
        if self.loses_answers:
            raise TimeoutError
        return written

    def _require(self) -> None:
        if self.cut:
            raise OSError("cannot connect")


class Candidate:
    """A replica: it stands by, then leads until it loses the Lease."""

    def __init__(self, name: str, time: Time, server: LeaseServer, wall: float = 1.8e9) -> None:
        self.connection = Connection(server, wall)
        self.fence = Fence(time)
        self.elector = LeaderElector(
            self.connection,
            self.fence,
            namespace="megatron-system",
            name="megatron-operator",
            identity=name,
            times=TIMES,
            clock=time,
            sleep=time.sleep,
        )
        self.lost: LeaseLostError | None = None
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        await self.elector.acquire()
        self.lost = await self.elector.hold()

    @property
    def leads(self) -> bool:
        return self.fence.remaining > 0

    async def die(self) -> None:
        """As by SIGKILL: nothing is released, and nothing is written any more."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.fence.close()


class Election:
    """Candidates over one Lease; after each step of time at most one of them may write."""

    def __init__(self) -> None:
        self.time, self.server = Time(), LeaseServer()
        self.candidates: list[Candidate] = []

    async def add(self, name: str, **options: Any) -> Candidate:
        candidate = Candidate(name, self.time, self.server, **options)
        self.candidates.append(candidate)
        await self.time.step()
        return candidate

    async def run(self, seconds: float) -> None:
        for _ in range(int(seconds / STEP)):
            await self.time.step()
            leaders = [each.elector.identity for each in self.candidates if each.leads]
            assert len(leaders) <= 1, f"{leaders} lead at the same time"

    async def until_leads(self, candidate: Candidate, seconds: float) -> None:
        """Fails unless the candidate is the leader within so many seconds."""
        for _ in range(int(seconds / STEP) + 1):
            if candidate.leads:
                return
            await self.run(STEP)
        raise AssertionError(f"not the leader after {seconds} s")

    async def close(self) -> None:
        for each in self.candidates:
            await each.die()


@pytest.fixture
async def election() -> Any:
    election = Election()
    yield election
    await election.close()


async def test_the_first_candidate_leads_and_the_second_stands_by(election: Election) -> None:
    first, second = await election.add("a"), await election.add("b")
    await election.run(10 * TIMES.lease_duration)
    assert first.leads
    assert not second.leads
    assert first.elector.term == 1


async def test_of_two_candidates_at_the_same_moment_one_leads(election: Election) -> None:
    first = Candidate("a", election.time, election.server)
    second = Candidate("b", election.time, election.server)
    election.candidates = [first, second]
    await election.run(TIMES.lease_duration)
    assert [first.leads, second.leads].count(True) == 1


@pytest.mark.parametrize("after", [0.0, 0.5, 1.0, 1.75])
async def test_a_killed_leader_is_replaced_in_time_with_the_next_term(
    election: Election, after: float
) -> None:
    first, second = await election.add("a"), await election.add("b")
    await election.run(30 + after)
    await first.die()
    await election.until_leads(second, TAKEOVER)
    assert second.elector.term == 2
    assert TAKEOVER < 15


async def test_a_leader_without_connection_stops_writing_before_another_one_begins(
    election: Election,
) -> None:
    first, second = await election.add("a"), await election.add("b")
    await election.run(30)
    first.connection.cut = True
    await election.until_leads(second, TAKEOVER)
    await election.run(1)
    assert first.lost is not None
    assert f"not renewed for {TIMES.renew_deadline} s" in str(first.lost)


async def test_a_short_interruption_costs_no_leadership(election: Election) -> None:
    first, second = await election.add("a"), await election.add("b")
    for _ in range(5):
        first.connection.cut = True
        await election.run(TIMES.renew_deadline - 2 * TIMES.retry_period)
        first.connection.cut = False
        await election.run(2 * TIMES.retry_period)
    assert first.leads
    assert not second.leads
    assert first.elector.term == 1


async def test_a_renewal_whose_answer_was_lost_costs_no_leadership(election: Election) -> None:
    first, second = await election.add("a"), await election.add("b")
    first.connection.loses_answers = True
    await election.run(TIMES.retry_period + STEP)
    first.connection.loses_answers = False
    await election.run(3 * TIMES.lease_duration)
    assert first.leads
    assert not second.leads


async def test_a_released_lease_is_taken_at_the_next_attempt(election: Election) -> None:
    first, second = await election.add("a"), await election.add("b")
    await election.run(30)
    first.task.cancel()
    await first.elector.release()
    assert not first.leads
    assert election.server.lease is not None
    assert election.server.lease["spec"]["holderIdentity"] == ""
    await election.until_leads(second, TIMES.retry_period)


async def test_a_lease_is_released_although_the_answer_to_its_last_renewal_was_lost(
    election: Election,
) -> None:
    """As when the process is terminated while it renews."""
    first, second = await election.add("a"), await election.add("b")
    await election.run(30)
    first.connection.loses_answers = True
    await election.run(TIMES.retry_period)
    first.connection.loses_answers = False
    first.task.cancel()
    await first.elector.release()
    assert election.server.lease is not None
    assert election.server.lease["spec"]["holderIdentity"] == ""
    await election.until_leads(second, TIMES.retry_period)


async def test_releasing_a_lease_that_another_one_took_changes_nothing(election: Election) -> None:
    first, second = await election.add("a"), await election.add("b")
    await election.run(4)
    first.connection.cut = True
    await election.until_leads(second, TAKEOVER)
    first.connection.cut = False
    await first.elector.release()
    assert election.server.lease is not None
    assert election.server.lease["spec"]["holderIdentity"] == "b"


@pytest.mark.parametrize("wall", [0.0, 4e9])
async def test_wrong_wall_clocks_neither_shorten_nor_prolong_a_lease(election: Election, wall: float) -> None:
    first = await election.add("a", wall=wall)
    second = await election.add("b")
    await election.run(5 * TIMES.lease_duration)
    assert first.leads
    await first.die()
    await election.until_leads(second, TAKEOVER)


async def test_a_candidate_that_was_frozen_does_not_take_a_lease_that_was_renewed_meanwhile(
    election: Election,
) -> None:
    """Its last observation is old when it continues; it must not take its age for the Lease's."""
    first, second = await election.add("a"), await election.add("b")
    second.connection.cut = True
    await election.run(60)
    second.connection.cut = False
    await election.run(TIMES.retry_period)
    assert first.leads
    assert not second.leads


async def test_a_leader_whose_lease_was_taken_notices_at_its_next_renewal(election: Election) -> None:
    first = await election.add("a")
    lease = election.server.lease
    assert lease is not None
    election.server.write(lease | {"spec": lease["spec"] | {"holderIdentity": "c"}})
    await election.run(TIMES.retry_period + STEP)
    assert first.lost is not None
    assert "it is held by c" in str(first.lost)
    assert not first.leads


async def test_a_leader_whose_lease_was_deleted_ends(election: Election) -> None:
    first = await election.add("a")
    election.server.lease = None
    await election.run(TIMES.retry_period + STEP)
    assert "deleted" in str(first.lost)
    assert not first.leads


@pytest.mark.parametrize("times", [(7, 7, 2), (10, 2, 2), (10, 7, 0)])
def test_times_that_allow_two_leaders_are_refused(times: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=f"lease duration {times[0]} s, renew deadline {times[1]} s"):
        LeaseTimes(*times)
