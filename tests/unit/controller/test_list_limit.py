"""Lists of pods that an API server answers slowly are sent fewer at a time."""

import contextlib
import math
from contextlib import AsyncExitStack

import pytest
from megatron_operator.controller.api_client import ApiError, ListsLimitedError
from megatron_operator.controller.list_limit import FIRST, LEAST, ListLimit


async def fail(limit: ListLimit, error: Exception, at_once: int) -> None:
    """So many lists are sent at the same time, and none is answered."""
    turns = [limit.turn() for _ in range(at_once)]
    for turn in turns:
        await turn.__aenter__()
    for turn in turns:
        with contextlib.suppress(type(error)):
            await turn.__aexit__(type(error), error, None)


async def answer(limit: ListLimit, count: int) -> None:
    for _ in range(count):
        async with limit.turn():
            pass


@pytest.mark.parametrize(
    "error", [TimeoutError("no answer in time"), ApiError(504, "Timeout", ""), ApiError(429, "", "")]
)
async def test_lists_that_time_out_together_halve_the_limit_once(error: Exception) -> None:
    limit = ListLimit()
    await fail(limit, error, at_once=32)
    assert limit.limit == FIRST
    await fail(limit, error, at_once=FIRST)
    assert limit.limit == FIRST / 2


async def test_one_list_that_fails_alone_leaves_room_for_others() -> None:
    limit = ListLimit()
    await fail(limit, ApiError(503, "ServiceUnavailable", ""), at_once=1)
    assert limit.limit == FIRST


async def test_other_refusals_are_no_sign_of_load() -> None:
    limit = ListLimit()
    await fail(limit, ApiError(403, "Forbidden", ""), at_once=300)
    assert limit.limit == math.inf


async def test_a_list_above_the_limit_is_refused_at_once_and_a_few_are_always_sent() -> None:
    limit = ListLimit()
    for at_once in (64, FIRST, 8, 4, 2):
        await fail(limit, TimeoutError(), at_once)
    assert limit.limit == LEAST
    async with AsyncExitStack() as waiting:
        for _ in range(LEAST):
            await waiting.enter_async_context(limit.turn())
        with pytest.raises(ListsLimitedError, match="answers slowly, and 2 lists wait for it"):
            await waiting.enter_async_context(limit.turn())
    await answer(limit, 1)


async def test_answers_restore_the_limit() -> None:
    limit = ListLimit()
    await fail(limit, TimeoutError(), at_once=8)
    await answer(limit, 16)
    assert limit.limit == FIRST + 4
    await answer(limit, 1000)
    assert limit.limit > 250
