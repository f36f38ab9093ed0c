"""The workflows run targets that exist, and none of the kinds of job is left out."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from megatron_operator.manifests.job_backends import BACKENDS

ROOT = Path(__file__).parents[3]
WORKFLOWS = ROOT / ".github" / "workflows"
TARGETS = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.M))


def steps(name: str) -> list[dict[str, Any]]:
    """The steps of a workflow that run a command, those of all its jobs."""
    jobs = yaml.safe_load((WORKFLOWS / name).read_text())["jobs"].values()
    return [step for job in jobs for step in job["steps"] if "run" in step]


def targets(step: dict[str, Any]) -> set[str]:
    """What a step makes."""
    lines = re.findall(r"^make (.+)$", step["run"], re.M)
    return {word for line in lines for word in line.split() if re.fullmatch(r"[a-z][\w-]*", word)}


@pytest.mark.parametrize("name", sorted(path.name for path in WORKFLOWS.glob("*.yaml")))
def test_workflows_make_targets_that_exist(name: str) -> None:
    assert set().union(*map(targets, steps(name))) <= TARGETS


def test_every_kind_of_job_can_be_chosen_and_has_its_targets_run() -> None:
    # PyYAML reads the key `on` as true.
    inputs = yaml.safe_load((WORKFLOWS / "full.yaml").read_text())[True]["workflow_dispatch"]["inputs"]
    choices = inputs["backend"]["options"]
    assert choices == [*BACKENDS, "kueue"]
    made: dict[str, set[str]] = {choice: set() for choice in choices}
    for step in steps("full.yaml"):
        for choice in re.findall(r"inputs\.backend == '(\w+)'", step.get("if", "")):
            made[choice] |= targets(step)
    assert made == {
        "pytorchjob": {"test", "faults"},
        "jobset": {"control-plane-jobset", "faults-jobset"},
        "trainjob": {"control-plane-trainjob", "faults-trainjob"},
        "kueue": {"test-kueue"},
    }


def test_what_is_left_out_of_the_whole_test_run_is_run_by_the_workflow() -> None:
    ignored = re.findall(
        r"--ignore (tests/control_plane/test_\w+\.py)", (ROOT / "scripts" / "test.sh").read_text()
    )
    text = (ROOT / "Makefile").read_text()
    made = set().union(*map(targets, steps("full.yaml")))
    recipes = [re.search(rf"^{target}:.*\n((?:\t.*\n)+)", text, re.M) for target in made]
    commands = " ".join(found[1] for found in recipes if found is not None)
    assert ignored
    for path in ignored:
        assert path in commands or re.search(r"pytest [^\n]*tests/control_plane$", commands, re.M), path
