"""Global batch sizes of a run, and its number of iterations."""

import re
from fractions import Fraction
from itertools import pairwise

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.errors import shown
from megatron_operator.api.training import TrainingSpec

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


def ramp_up(text: str) -> tuple[tuple[int, int], ...]:
    """`0:384 200B:768` as pairs of first token and batch size in samples, as Megatron parses it.

    Raises ValueError when Megatron would reject it.
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


def global_batches(training: TrainingSpec, found: Diagnostics) -> list[int]:
    """All global batch sizes of the run, in order; empty with an error in `found`."""
    text, path = training.step_batch_size_schedule, "spec.training.stepBatchSizeSchedule"
    if text is None:
        if training.global_batch_size is None:
            found.error("spec.training.globalBatchSize", "is missing", "set it")
            return []
        return [training.global_batch_size]
    if training.global_batch_size is not None:
        found.error(path, "is set together with globalBatchSize", "set one of the two")
        return []
    try:
        return [batch for _, batch in ramp_up(text)]
    except ValueError as error:
        found.error(path, f"{shown(text)}: {error}", "write pairs such as 0:384 200B:768")
        return []


def iterations(training: TrainingSpec) -> int | None:
    """Iterations of the whole run; none under a batch ramp-up, where their size varies."""
    if training.train_iters is not None:
        return training.train_iters
    if training.train_samples is None or training.global_batch_size is None:
        return None
    return training.train_samples // training.global_batch_size
