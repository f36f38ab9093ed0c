"""The CLI's own limits of planning."""

import json
import resource
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from megatron_operator.api.errors import InvalidRecipeError, PlanningLimitError
from megatron_operator.cli import limits as cli_limits
from megatron_operator.cli import planning
from megatron_operator.cli.limits import planning_limits
from megatron_operator.cli.main import cli
from megatron_operator.planner import recommend
from megatron_operator.planner.limits import PlanningLimits

EXAMPLE = Path(__file__).parents[3] / "examples" / "llama3-8b.yaml"


def never_ends(*_: object) -> None:
    while True:
        try:
            sum(range(1000))
        except InvalidRecipeError:
            continue


def test_planning_that_never_ends_is_an_error_of_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "admit", never_ends)
    result = CliRunner().invoke(cli, ["validate", "-f", str(EXAMPLE)])
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "spec: planning it was stopped after 6 s of processor time; "
        "set fewer layers, experts or accelerators, or set the parallel sizes"
    ]


def test_a_recipe_that_cannot_be_planned_in_time_does_not_keep_another_from_being_recommended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ["recommend", "--model", "llama3", "--gpus", "64", "--accelerator", "h100-sxm", "-o", "json"]
    best, *others = [each["name"] for each in json.loads(CliRunner().invoke(cli, words).stdout)]
    admit = recommend.admit

    def admit_unless_best(name: str, *rest: Any) -> Any:
        return never_ends() if name == best else admit(name, *rest)

    monkeypatch.setattr(recommend, "admit", admit_unless_best)
    monkeypatch.setattr(cli_limits, "PlanningLimits", partial(PlanningLimits, cpu_seconds=1.0))
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0
    found = {each["name"]: each for each in json.loads(result.stdout)}
    assert list(found) == [*others, best]
    assert found[best]["reasons"] == [
        "spec: planning it was stopped after 1 s of processor time; "
        "set fewer layers, experts or accelerators, or set the parallel sizes"
    ]


def test_planning_that_takes_all_memory_is_an_error_of_the_recipe() -> None:
    message = "spec: planning it was stopped at 1 MiB of memory"
    limits = PlanningLimits(memory_bytes=2**20)
    with pytest.raises(PlanningLimitError, match=message), planning_limits(limits):
        bytearray(2**30)


def test_the_process_is_as_before_afterwards() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA), signal.getsignal(signal.SIGPROF)
    with planning_limits():
        pass
    assert (resource.getrlimit(resource.RLIMIT_DATA), signal.getsignal(signal.SIGPROF)) == before
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)
