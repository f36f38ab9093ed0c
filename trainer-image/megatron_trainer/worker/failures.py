"""Classifies what ends a rank: exceptions and Megatron's early exits become a RankError with an exit code."""

import contextlib
import re
import traceback

from megatron.training import get_args
from megatron_contract.exit_codes import ExitCode
from megatron_contract.hardware import ErrorSource, Evidence, classify_error
from torch.distributed.checkpoint.api import CheckpointException

from megatron_trainer.checkpoints.checkpoint_lease import LeaseLostError
from megatron_trainer.checkpoints.load_errors import caused_by_content
from megatron_trainer.checkpoints.volume import SAVE_FAILED, format_bytes, free_bytes
from megatron_trainer.errors import TrainerError
from megatron_trainer.read_errors import is_temporary_in_step
from megatron_trainer.secret_values import scrub
from megatron_trainer.telemetry.rank_failure import RankFailure
from megatron_trainer.telemetry.reporter import RESUME_ELSEWHERE
from megatron_trainer.worker.megatron_hooks import (
    BadLossError,
    UnreadableCheckpointError,
    WrongCheckpointError,
)

# Exit code of Megatron's rerun state machine (megatron.core.rerun_state_machine).
FAILED_ON_RESULT_VALIDATION = 17

# How Megatron rejects incompatible flags: plain exceptions, mostly assertions.
FLAG_REJECTIONS = (AssertionError, ValueError, TypeError, KeyError, NotImplementedError)

_PEER_LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Connection refused",
    "Connection was likely closed",
    "recvValue failed",
    "failed to recv",
    "Timed out waiting",
)
_MAX_CAUSE_CHARACTERS = 300
_MAX_MESSAGE_CHARACTERS = 2000


class RankError(TrainerError):
    """The rank ends with exit code `code`. The other attributes are those of RankFailure."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.iteration: int | None = None
        self.evidence: Evidence | None = None
        self.unreadable: int | None = None

    def report(self) -> RankFailure:
        """Return the report for the launcher: without values of Secrets, cut to _MAX_MESSAGE_CHARACTERS."""
        return RankFailure(
            int(self.code),
            scrub(str(self))[:_MAX_MESSAGE_CHARACTERS],
            self.iteration,
            self.evidence or "",
            self.unreadable,
        )


def describe(error: BaseException) -> str:
    """Return the text of an error, or the line that raised it: many of Megatron's asserts have no text."""
    text = " ".join(scrub(str(error)).split())
    if text:
        return text
    frames = traceback.extract_tb(error.__traceback__)
    return frames[-1].line or type(error).__name__ if frames else type(error).__name__


def flags_refused(error: Exception) -> RankError:
    """Return the RankError for flags that Megatron rejects."""
    return RankError(ExitCode.USAGE, f"Megatron refuses the flags: {describe(error)}")


def classify(error: BaseException) -> RankError:
    """Return the RankError for any exception of a rank."""
    if isinstance(error, RankError):
        return error
    if (hardware := _hardware_failure(error)) is not None:
        return hardware
    if isinstance(error, WrongCheckpointError):
        return RankError(ExitCode.INTERNAL, str(error))
    if isinstance(error, LeaseLostError):
        return RankError(ExitCode.PEER_LOST, str(error))
    if isinstance(error, BadLossError):
        return RankError(ExitCode.LOSS_NOT_FINITE, str(error))
    if isinstance(error, UnreadableCheckpointError):
        return _load_failure(error)
    if isinstance(error, CheckpointException):
        causes = [cause for cause, _ in error.failures.values()]
        lost = next((cause for cause in causes if isinstance(cause, LeaseLostError)), None)
        return _checkpoint_failure(error) if lost is None else classify(lost)
    text = describe(error)
    if any(f"found {what} in local" in text for what in ("NaN", "Inf")):
        return RankError(ExitCode.LOSS_NOT_FINITE, text)
    if _lost_peer(text):
        return RankError(ExitCode.PEER_LOST, text)
    return RankError(ExitCode.WORKER_DIED, f"{type(error).__name__}: {text}")


def classify_in_loop(error: Exception, iteration: int, stepping: int | None) -> RankError:
    """Classify an error raised after `iteration`, in the step of iteration `stepping` or between two steps.

    An error in a step may recur there, but an error of the device, of its libraries or of a volume names no
    iteration: an older checkpoint would not help. A loss that is not finite always names one. Between two
    steps an evaluation found it, and the weights are those of the iteration before.
    """
    failure = classify(error)
    if failure.code == ExitCode.LOSS_NOT_FINITE:
        found = f"evaluation after iteration {iteration}" if stepping is None else f"iteration {stepping}"
        # Megatron names the iteration after it.
        failure = RankError(
            failure.code, re.sub(r"iteration \d+(?=: Unexpected result)", found, str(failure))
        )
        failure.iteration = iteration if stepping is None else stepping
    elif failure.code == ExitCode.WORKER_DIED and not is_temporary_in_step(error):
        recurs = classify_error(str(failure)).source is ErrorSource.OTHER
        failure.iteration = stepping if recurs else None
    return failure


def _hardware_failure(error: BaseException) -> RankError | None:
    """The failure of this rank's device, also while a checkpoint is loaded or saved; None for any other."""
    reasons = [error]
    for each in (error, error.__cause__):
        if isinstance(each, CheckpointException):
            reasons += [failure[0] for failure in each.failures.values()]
        elif isinstance(each, BaseException):
            reasons.append(each)
    for reason in reasons:
        text = describe(reason)
        if (evidence := classify_error(text).evidence) is not None:
            failure = RankError(ExitCode.WORKER_DIED, f"{type(reason).__name__}: {text}")
            failure.evidence = evidence
            return failure
    return None


def _lost_peer(text: str) -> bool:
    return classify_error(text).source is ErrorSource.PEER or any(sign in text for sign in _PEER_LOST)


def _load_failure(error: UnreadableCheckpointError) -> RankError:
    """A checkpoint that cannot be loaded; it is at fault only where its content is.

    Only the ranks that read the damage know why; the others lose a peer, or fail by what was half read.
    """
    cause = error.__cause__
    assert cause is not None
    if isinstance(cause, CheckpointException):
        failures = list(cause.failures.values())
        if not failures:
            return RankError(ExitCode.PEER_LOST, f"{error}, another rank reports why")
    else:
        failures = [(cause, traceback.extract_tb(cause.__traceback__))]
    damage = [each for each in failures if caused_by_content(*each)]
    own = [each for each in failures if not _lost_peer(describe(each[0]))]
    cause, _ = (damage or own or failures)[0]
    text = describe(cause)
    if not (damage or own):
        return RankError(ExitCode.PEER_LOST, text)
    failure = RankError(
        ExitCode.WORKER_DIED, f"{error}: {type(cause).__name__}: {text[:_MAX_CAUSE_CHARACTERS]}"
    )
    if damage:
        failure.unreadable = error.iteration
    return failure


def _checkpoint_failure(error: CheckpointException) -> RankError:
    """A failed save: the writers' message without tracebacks, and the free space, the usual reason.

    Or a failed load of weights to begin with, which is no resume. Only the coordinating rank knows why; the
    others are just notified.
    """
    loading = any(_is_load(frame) for frame in traceback.extract_tb(error.__traceback__))
    what = "weights could not be loaded" if loading else SAVE_FAILED
    if not error.failures:
        return RankError(ExitCode.PEER_LOST, f"{what}, another rank reports why")
    message = describe(error).rpartition("RuntimeError: ")[2][:_MAX_CAUSE_CHARACTERS]
    if loading:
        return RankError(ExitCode.WORKER_DIED, f"{what} ({message})")
    space = ""
    with contextlib.suppress(OSError):
        space = f"; {format_bytes(free_bytes(get_args().save))} free on the volume of {get_args().save}"
    return RankError(ExitCode.WORKER_DIED, f"{what} ({message}){space}")


def _is_load(frame: traceback.FrameSummary) -> bool:
    return frame.name == "load" and frame.filename.endswith("dist_checkpointing/serialization.py")


def classify_early_exit(code: object, iteration: int) -> RankError:
    """Classify Megatron's sys.exit out of its loop; 0 stands for a signal, a time limit or an interval."""
    if code == FAILED_ON_RESULT_VALIDATION:
        failure = RankError(
            ExitCode.LOSS_NOT_FINITE, f"a result of iteration {iteration + 1} failed validation twice"
        )
        failure.iteration = iteration + 1
        return failure
    if code == RESUME_ELSEWHERE:
        return RankError(
            RESUME_ELSEWHERE,
            f"iteration {iteration + 1}: Megatron asks to resume on another GPU, to find the faulty one",
        )
    if code in (None, 0):
        train_iters = getattr(get_args(), "train_iters", None)
        return RankError(ExitCode.TERMINATED, f"Megatron stopped at iteration {iteration} of {train_iters}")
    return RankError(ExitCode.INTERNAL, f"Megatron exited with code {code} at iteration {iteration}")
