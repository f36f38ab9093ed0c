"""What the pods agree on: the gang's state in the store, and the plan of a generation. Imports no torch."""

import json
from dataclasses import asdict, dataclass

from megatron_trainer.errors import TrainerError
from megatron_trainer.telemetry.incidents import FailureReport
from megatron_trainer.termination import Ending


@dataclass(frozen=True)
class State:
    """The gang's generation, why it started, and the verdict that ends the run, if there is one.

    `hang` is the folder for all ranks' stacks once the ranks of this generation are found to hang.
    """

    generation: int
    report: FailureReport | None = None
    verdict: Ending | None = None
    hang: str | None = None

    @property
    def why(self) -> str:
        """Why the generation started."""
        return "start" if self.report is None else self.report.cause

    def dumps(self) -> str:
        """Serialize for the store."""
        return json.dumps(
            {
                "generation": self.generation,
                "report": self.report.to_json() if self.report else None,
                "verdict": self.verdict.to_json() if self.verdict else None,
                "hang": self.hang,
            }
        )

    @classmethod
    def loads(cls, text: str) -> "State":
        """Parse what `dumps` returned."""
        value = json.loads(text)
        return cls(
            value["generation"],
            FailureReport.from_json(value["report"]) if value["report"] else None,
            Ending.from_json(value["verdict"]) if value["verdict"] else None,
            value["hang"],
        )


class RunEndedError(TrainerError):
    """The run, or this pod's part in it, is over: there is no next generation.

    An exception because half of its causes are found inside `next_rendezvous`, which torch's agent calls and
    whose only other result is a rendezvous. `report` is what the pod reported to the others, None if nothing.
    """

    def __init__(self, ending: Ending, report: FailureReport | None = None) -> None:
        super().__init__(ending.message)
        self.ending = ending
        self.report = report


@dataclass(frozen=True)
class GenerationPlan:
    """What node 0 announces for a generation.

    `iteration` is the checkpoint to load, None for none; `skip` are iterations to leave out; `preflight`
    makes the ranks check devices and connections before they load; only ranks of the launcher `owner` may
    write checkpoints; `master_port` is for the process group.
    """

    iteration: int | None
    skip: tuple[int, ...] = ()
    preflight: bool = False
    owner: str = ""
    master_port: int = 0

    def dumps(self) -> str:
        """Serialize for the store."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> "GenerationPlan":
        """Parse what `dumps` returned."""
        value = json.loads(text)
        return cls(**(value | {"skip": tuple(value["skip"])}))
