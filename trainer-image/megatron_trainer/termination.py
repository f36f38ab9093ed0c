"""How a pod ends: an exit code, a reason, and one JSON object on the termination log."""

from dataclasses import dataclass
from pathlib import Path

from megatron_contract.exit_codes import ExitCode
from megatron_contract.hardware import Evidence
from megatron_contract.progress import PROGRESS_SCHEMA, ProgressReport
from megatron_contract.termination import TerminationMessage

from megatron_trainer.secret_values import scrub


@dataclass(frozen=True)
class Ending:
    """Why a pod ends. `rank` is the global rank that caused it, None if no rank did.

    `evidence` is set if the hardware of this pod's node failed. The message has no values of Secrets.
    """

    code: ExitCode
    message: str
    rank: int | None = None
    evidence: Evidence | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", scrub(self.message))

    def to_json(self) -> dict[str, object]:
        """Return a JSON object for the gang's store, without the evidence: that concerns one pod only."""
        return {"exitCode": int(self.code), "message": self.message, "rank": self.rank}

    @classmethod
    def from_json(cls, value: dict[str, object]) -> "Ending":
        """Parse what `to_json` returned. Raises KeyError or ValueError."""
        rank = value["rank"]
        return cls(
            ExitCode(int(str(value["exitCode"]))),
            str(value["message"]),
            rank if isinstance(rank, int) else None,
        )


def write(path: Path, ending: Ending, node_rank: int, report: ProgressReport | None) -> None:
    """Write the termination message, with what the pod last reported.

    If that fails, print it: the exit code stays the same.
    """
    known = report or ProgressReport(PROGRESS_SCHEMA, "failed")
    termination = TerminationMessage.of(
        ending.code,
        ending.message,
        node_rank=node_rank,
        rank=ending.rank,
        iteration=known.iteration,
        checkpoint_iteration=known.checkpoint_iteration,
        evidence=ending.evidence,
        best_checkpoint_iteration=known.best_checkpoint_iteration,
        best_checkpoint_loss=known.best_checkpoint_loss,
    )
    text = termination.dumps()
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        print(f"megatron-train: cannot write {path}: {error}; termination message: {text}", flush=True)
