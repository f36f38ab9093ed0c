"""The stacks of a hang for the pod's log: short, since all of them are in a file beside the checkpoints."""

from collections.abc import Sequence

from megatron_trainer.health.stacks import MAIN_THREAD, NO_ANSWER, RankState

MAX_STACKS = 3
"""Different stacks of main threads that are printed."""
MAX_FRAMES = 20
"""Innermost frames of each."""
_MAX_RANKS = 16
_LONGEST_FRAME = 300


def summarize_stacks(ranks: Sequence[RankState]) -> str:
    """Return the stacks of the main threads of these ranks; ranks with the same one share it.

    First those of the fewest ranks: a rank that does not wait with the others is among them. At most
    MAX_STACKS of MAX_FRAMES lines.
    """
    groups: dict[str, list[RankState]] = {}
    for rank in ranks:
        groups.setdefault(_main_thread(rank), []).append(rank)
    ordered = sorted(groups.items(), key=lambda group: len(group[1]))
    found = []
    for stack, members in ordered[:MAX_STACKS]:
        found.append(members[0].headline())
        if same := ", ".join(str(each.rank) for each in members[1 : _MAX_RANKS + 1]):
            more = f" and {len(members) - 1 - _MAX_RANKS} more" if len(members) > _MAX_RANKS + 1 else ""
            found.append(f"  the same stack: rank {same}{more}")
        found.append(stack)
    if left := sum(len(members) for _, members in ordered[MAX_STACKS:]):
        found.append(f"ranks with other stacks: {left}")
    return "\n".join(found)


def _main_thread(rank: RankState) -> str:
    """The innermost frames of the main thread, or of the first one listed where that is not known."""
    if not rank.stacks:
        return NO_ANSWER
    main, _, _ = rank.stacks.partition("\n\n")
    lines = [line[:_LONGEST_FRAME] for line in main.splitlines() if not _is_header(line)]
    left = len(lines) - MAX_FRAMES
    return "\n".join([*lines[:MAX_FRAMES], *([f"  {left} more frames"] if left > 0 else [])])


def _is_header(line: str) -> bool:
    """Whether a line names a thread; the number in it differs between ranks."""
    return line == MAIN_THREAD or "hread 0x" in line
