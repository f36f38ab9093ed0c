"""Numbers of samples in few characters: of blocks at equal distances the first, and how many there are."""

from collections.abc import Iterable, Iterator, Sequence

from megatron_trainer.errors import TrainerError

MOST_NUMBERS = 1 << 24
"""Numbers of a line that are believed: a damaged one must not reserve memory for as many as it names."""

type Run = int | list[int]
"""One number; [first, length] of consecutive ones; or [first, length, step, times] of such blocks."""


class RunsError(TrainerError):
    """What was read is no list of runs."""


def compress(numbers: Iterable[int]) -> list[Run]:
    """Return the runs of `numbers`, in their order."""
    found: list[Run] = []
    first = length = step = times = 0
    for start, size in _blocks(numbers):
        last = first + (times - 1) * step
        if times == 1 and size == length:
            step, times = start - first, 2
        elif times > 1 and size == length and start - last == step:
            times += 1
        elif times == 2 and size == length:
            # Two blocks have some distance always; the second may begin a longer run.
            found.append(_block(first, length))
            first, step = last, start - last
        else:
            found += _runs(first, length, step, times)
            first, length, step, times = start, size, 0, 1
    return [*found, *_runs(first, length, step, times)]


def _blocks(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    first = length = 0
    for number in numbers:
        if length and number == first + length:
            length += 1
            continue
        if length:
            yield first, length
        first, length = number, 1
    if length:
        yield first, length


def _block(first: int, length: int) -> Run:
    return first if length == 1 else [first, length]


def _runs(first: int, length: int, step: int, times: int) -> list[Run]:
    if times > 2:
        return [[first, length, step, times]]
    return [_block(first + at * step, length) for at in range(times)]


def expand(runs: object) -> list[int]:
    """Return the numbers of `runs`. Raises RunsError for what `compress` does not return."""
    if not isinstance(runs, list):
        raise RunsError("no list of runs")
    found: list[int] = []
    for run in runs:
        first, length, step, times = _parsed(run)
        if length * times > MOST_NUMBERS - len(found):
            raise RunsError(f"more than {MOST_NUMBERS} numbers")
        for at in range(times):
            found += range(first + at * step, first + at * step + length)
    return found


def _parsed(run: object) -> tuple[int, int, int, int]:
    parts: Sequence[object] = run if isinstance(run, list) else [run, 1]
    parts = [*parts, 0, 1] if len(parts) == 2 else parts
    if len(parts) != 4 or not all(type(part) is int and abs(part) < 1 << 62 for part in parts):
        raise RunsError(f"no run: {run!r:.60}")
    first, length, step, times = (part for part in parts if isinstance(part, int))
    if length < 1 or times < 1 or abs(first + step * (times - 1)) >= 1 << 62:
        raise RunsError(f"no run: {run!r:.60}")
    return first, length, step, times
