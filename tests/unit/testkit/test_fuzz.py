"""The fuzzer finds what it is made for, and its cases stay close to what is right."""

import itertools
import json
from pathlib import Path

import pytest
from megatron_operator.api.errors import FieldError, InvalidRecipeError

from testkit.fuzz import page, runner, samples, targets
from testkit.fuzz.guard import TooSlow, limited
from testkit.fuzz.strategies import leaves
from testkit.fuzz.worker import Worker


def test_an_endless_answer_is_stopped() -> None:
    with (
        pytest.raises(TooSlow, match=r"more than 0\.05 s of processor time, stopped at .*test_fuzz\.py"),
        limited(0.05),
    ):
        for _ in itertools.count():
            pass


def test_a_finding_is_reported_once_and_made_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(text: str) -> None:
        if "bad" in text:
            raise KeyError(text)

    monkeypatch.setitem(targets.TARGETS, "recipe", targets.Target(targets.TARGETS["recipe"].texts, check))
    worker = Worker("recipe", tmp_path / "case")
    for text in ("fine\n", "a\nb\nbad\nc\n", "bad\n"):
        worker.run(text)
    (line,) = capsys.readouterr().out.splitlines()
    assert '"text": "bad\\n"' in line
    assert "KeyError" in line
    assert worker.cases == 3


def test_a_worker_that_dies_is_a_finding_with_its_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "dies"
    script.write_text('#!/bin/bash\nprintf "7\\nthe case" > "${@: -1}"\nkill -SEGV $$\n')
    script.chmod(0o755)
    monkeypatch.setattr(runner.sys, "executable", str(script))
    summary = runner.run("recipe", 7)
    (finding,) = summary.findings.values()
    assert finding.kind.startswith("the process ends with -11")
    assert finding.text == "the case"
    assert summary.cases == 7


@pytest.mark.parametrize(
    "error",
    [
        FieldError("", "is wrong", "fix it"),
        FieldError("somewhere", "is wrong", "fix it"),
        FieldError("spec.image", "", "fix it"),
        FieldError("spec.image", "is wrong", ""),
        FieldError("spec.image", "has\na line", "fix it"),
        FieldError("spec.image", "x" * 5000, "fix it"),
    ],
)
def test_an_error_without_field_message_or_fix_is_a_wrong_answer(error: FieldError) -> None:
    with pytest.raises(targets.WrongAnswer):
        targets.check_errors(InvalidRecipeError([error]))


def test_every_field_of_a_recipe_can_be_changed() -> None:
    schema = {"properties": {"a": {"type": "object", "properties": {"b": {"type": "array", "items": {}}}}}}
    assert [leaf.path for leaf in leaves(schema)] == [("a",), ("a", "b"), ("a", "b", 0)]


@pytest.mark.parametrize("name", sorted(targets.TARGETS))
def test_what_cases_are_made_of_is_right(name: str) -> None:
    """A seed that is refused at once would test nothing but the refusal."""
    good = {
        "recipe": samples.recipe_of("llama3-8b"),
        "platform": samples.platform_seeds()[0],
        "catalog": samples.CATALOGS[0],
        "progress": samples.PROGRESS,
        "termination": samples.TERMINATION,
        "status": samples.STATUSES[1],
        "journal": samples.JOURNAL,
        "conversion": samples.CONVERSION,
        "page": page.SEED,
    }
    targets.TARGETS[name].check(json.dumps(good[name]))
