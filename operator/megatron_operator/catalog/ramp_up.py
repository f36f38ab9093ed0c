"""A batch ramp-up: global batch sizes that follow each other, and the iterations of a run with them."""

import re
from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise
from typing import Any

from megatron_operator.api.errors import shown

Steps = tuple[tuple[int, int], ...]
"""Where each batch size begins, in tokens or in samples, and the size in samples."""

_SUFFIX = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_AMOUNT = re.compile(r"[0-9]{1,18}(\.[0-9]{0,18})?([eE][0-9]{1,2})?")
"""With a larger exponent, the number itself would fill the memory."""


def amount(text: str) -> int:
    """`15T` as a number of tokens (K 1e3, M 1e6, B 1e9, T 1e12). Raises ValueError for anything else."""
    digits = text.rstrip("KMBT")
    if len(text) - len(digits) > 1:
        raise ValueError(f"{shown(text)} has more than one suffix")
    if not _AMOUNT.fullmatch(digits):
        raise ValueError(f"{shown(text)} is not a number of tokens")
    return int(Fraction(digits) * _SUFFIX.get(text[-1:], 1))


def ramp_up(text: str) -> Steps:
    """`0:384 200B:768` as pairs of first token and batch size in samples, as Megatron parses it.

    Raises ValueError when Megatron would reject it for a sequence of one token.
    """
    steps = []
    for part in text.replace(",", " ").split():
        tokens, _, batch = part.partition(":")
        if not re.fullmatch("[0-9]{1,18}", batch) or int(batch) < 1:
            raise ValueError(f"{shown(part)} is not a tokens:batch pair")
        try:
            steps.append((amount(tokens), int(batch)))
        except (ValueError, ZeroDivisionError):
            raise ValueError(f"{shown(part)} is not a tokens:batch pair") from None
    if not steps or steps[0][0] != 0:
        raise ValueError("it does not begin at token 0")
    if any(later <= earlier for (earlier, _), (later, _) in pairwise(steps)):
        raise ValueError("its tokens do not increase")
    return tuple(steps)


def in_samples(steps: Steps, seq_length: int) -> Steps:
    """Steps that begin at tokens as those that begin at samples of `seq_length` tokens.

    Raises ValueError where two begin at the same sample, which Megatron refuses
    (`StepBatchsizeNumMicroBatchesCalculator`).
    """
    for (earlier, _), (later, batch) in pairwise(steps):
        if later // seq_length <= earlier // seq_length:
            raise ValueError(
                f"{later}:{batch} begins at sample {later // seq_length:,}, as the batch before it:"
                f" {earlier} and {later} are tokens, of which a sample has {seq_length:,}"
            )
    return tuple((tokens // seq_length, batch) for tokens, batch in steps)


def of_training(training: Mapping[str, Any]) -> Steps | None:
    """The steps of the wire form of `training`, in samples; None without a ramp-up that Megatron takes."""
    text, seq_length = training.get("stepBatchSizeSchedule"), training.get("seqLength")
    if not text or not seq_length:
        return None
    try:
        return in_samples(ramp_up(text), seq_length)
    except ValueError:
        return None


def iterations_of(steps: Steps, samples: int) -> int:
    """Iterations of a run of so many samples, as Megatron counts them (`update_train_iters`).

    An iteration has the batch of the step in which it begins, and the last one may go beyond the samples.
    """
    consumed = iterations = 0
    for batch, end in _bounded(steps, samples):
        count = _rounded_up(min(end, samples) - consumed, batch)
        consumed, iterations = consumed + count * batch, iterations + count
    return iterations


def samples_of(steps: Steps, iterations: int) -> int:
    """Samples of the first so many iterations."""
    consumed = 0
    for batch, end in _bounded(steps, iterations * max(batch for _, batch in steps)):
        count = min(iterations, _rounded_up(end - consumed, batch))
        consumed, iterations = consumed + count * batch, iterations - count
    return consumed


def _bounded(steps: Steps, last: int) -> list[tuple[int, int]]:
    """Each batch size and the sample at which the next one begins; for the last one `last`."""
    ends = [*(start for start, _ in steps[1:]), last]
    return [(batch, end) for (_, batch), end in zip(steps, ends, strict=True)]


def _rounded_up(samples: int, batch: int) -> int:
    """Iterations of a batch that so many samples begin."""
    return max(0, -(-samples // batch))
