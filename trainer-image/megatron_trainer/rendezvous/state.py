"""What the gang agrees on: the state in its store, and the plan of a generation. Needs no torch."""

import json
from dataclasses import asdict, dataclass

from megatron_trainer.launcher.termination import Ending
from megatron_trainer.telemetry.incidents import Report


@dataclass(frozen=True)
class State:
    """The gang's generation, why it was begun, and the verdict that ends the run, if there is one.

    `hang` names the folder for everybody's stacks once the ranks of this generation are found to hang.
    """

    generation: int
    report: Report | None = None
    verdict: Ending | None = None
    hang: str | None = None

    @property
    def why(self) -> str:
        return "start" if self.report is None else self.report.cause

    def dumps(self) -> str:
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
        value = json.loads(text)
        return cls(
            value["generation"],
            Report.from_json(value["report"]) if value["report"] else None,
            Ending.from_json(value["verdict"]) if value["verdict"] else None,
            value["hang"],
        )


class Ended(Exception):
    """There will be no next generation: the run, or this pod's part in it, ends so.

    `report` is what the gang was told of it, None where it was told nothing.
    """

    def __init__(self, ending: Ending, report: Report | None = None) -> None:
        super().__init__(ending.message)
        self.ending = ending
        self.report = report


@dataclass(frozen=True)
class Plan:
    """What node 0 announces for a generation. Iteration None: from the beginning.

    `skip` are iterations to leave out, `preflight` asks the ranks to check themselves before they load, and
    only ranks of the launcher `owner` may write checkpoints.
    """

    iteration: int | None
    skip: tuple[int, ...] = ()
    preflight: bool = False
    owner: str = ""
    master_port: int = 0

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> "Plan":
        value = json.loads(text)
        return cls(**(value | {"skip": tuple(value["skip"])}))
