"""The parts that watch a run act in the order of what they know, whatever the step time and the setting."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from megatron_contract import time_limits as limits

SECONDS = st.floats(0.001, 86_400)
STEPS = st.floats(0.001, 500)
PAGE = Path(__file__).parents[3] / "docs" / "recovery.md"


@given(SECONDS)
def test_a_step_survives_a_stalled_file_system(step: float) -> None:
    assert limits.watchdog_limit(step) > step + limits.STALL


@given(SECONDS)
def test_the_operator_waits_until_the_trainer_has_had_its_chance(step: float) -> None:
    assert limits.operator_step_limit(step) >= limits.watchdog_limit(step) + limits.OPERATOR_MARGIN


@given(SECONDS)
def test_the_operator_waits_beyond_a_stated_limit_too(stated: float) -> None:
    assert limits.operator_limit(stated) > stated


@given(STEPS)
def test_collectives_time_out_after_every_automatic_limit(step: float) -> None:
    collectives = 60 * limits.collective_minutes(None)
    assert collectives > limits.watchdog_limit(step)
    assert collectives > limits.operator_limit(limits.LONG_ACTIVITY)


@given(SECONDS)
def test_collectives_time_out_after_a_stated_limit(stated: float) -> None:
    assert 60 * limits.collective_minutes(stated) > limits.operator_limit(stated)


def test_the_page_has_the_limits_in_force() -> None:
    """The table of docs/recovery.md, number by number."""
    step, stated = "3 x the median step + 75 s", "hangTimeout"
    assert limits.watchdog_limit(0) == 75
    assert limits.watchdog_limit(1) - limits.watchdog_limit(0) == 3
    rows = [
        f"| A training step | {step} | `{stated}` |",
        f"| Loading, the first step, a save | {limits.LONG_ACTIVITY:.0f} s | "
        f"{limits.LONG_ACTIVITY:.0f} s, or `{stated}` if it is longer |",
        f"| No new iteration, seen by the operator | {limits.OPERATOR_STEPS} steps, "
        f"at least the trainer's limit + {limits.OPERATOR_MARGIN:.0f} s | "
        f"`{stated}` + {limits.OPERATOR_MARGIN:.0f} s, at most twice `{stated}` |",
        "| The same while loading, saving or evaluating, since ranks last reported an evaluated batch or "
        f"packed samples | {limits.operator_limit(limits.LONG_ACTIVITY):.0f} s | "
        f"{limits.operator_limit(limits.LONG_ACTIVITY):.0f} s, or `{stated}` + "
        f"{limits.OPERATOR_MARGIN:.0f} s if it is longer |",
        f"| A collective (`--distributed-timeout-minutes`) | {limits.collective_minutes(None)} min | "
        f"{limits.collective_minutes(None)} min, or {limits.COLLECTIVE_MARGIN / 60:.0f} min after the "
        f"operator's limit for `{stated}` |",
    ]
    text = PAGE.read_text()
    assert [row for row in rows if row not in text] == []
