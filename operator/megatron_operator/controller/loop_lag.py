"""Measures how late the event loop is: whatever blocks it delays every recipe and the liveness probe."""

import asyncio
from typing import Final

from megatron_operator.controller.metrics import LOOP_LAG

INTERVAL: Final = 0.05
"""Seconds between two measurements. Anything that blocks the loop for longer delays one of them."""


async def measure_loop_lag() -> None:
    """Observe the lag until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + INTERVAL
        await asyncio.sleep(INTERVAL)
        LOOP_LAG.observe(max(0.0, loop.time() - due))
