"""`megatron-samples`: what it prints of a run's record."""

import json
from pathlib import Path

import pytest
from megatron_trainer.data import samples_command
from megatron_trainer.telemetry.sample_log import TRAINED, SampleLog, Start


@pytest.fixture
def save(tmp_path: Path) -> Path:
    """The checkpoint directory of a run that has read lines of a file in two generations."""
    file = tmp_path / "training.jsonl"
    file.write_text("".join(json.dumps({"text": f"line {number}"}) + "\n" for number in range(8)))
    dataset = {"kind": "lines", "order": "sequential", "path": str(file)}
    for generation, resumed_from, last in ((1, 0, 3), (2, 2, 4)):
        log = SampleLog(tmp_path / "save" / "samples", 0, Start(generation, resumed_from, 1, 8, dataset))
        for iteration in range(resumed_from + 1, last + 1):
            log.add(iteration, [iteration * 2 - 2, iteration * 2 - 1], [iteration, 0], TRAINED)
        log.flush()
    return tmp_path / "save"


def run(*words: str | Path) -> int:
    return samples_command.run([str(word) for word in words])


def test_without_an_iteration_it_lists_generations_and_finds_no_problem(
    save: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(save) == 0
    assert capsys.readouterr().out == (
        "iterations 1 to 2: generation 1, 1 data-parallel rank\n"
        "iterations 3 to 4: generation 2, 1 data-parallel rank\n"
        "no sample is repeated or left out\n"
    )


def test_a_repeated_sample_ends_it_with_1(save: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = save / "samples" / "data-parallel-rank-0.jsonl"
    file.write_text(file.read_text().replace("[4, 2]", "[3, 2]"))
    assert run(save, "--json") == samples_command.FAILED
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert problems == ["samples left out: 5 (1 in all)", "samples read again: 3 (1 in all)"]


def test_an_iteration_has_its_lines_with_their_text(save: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(save, "--iteration", "3", "--text", "12") == 0
    path = save.parent / "training.jsonl"
    assert capsys.readouterr().out.splitlines() == [
        "iteration 3, generation 2",
        "data-parallel rank 0, sample 4",
        f"  {path}:4",
        r'    "{\"text\": \"li"',
        "data-parallel rank 0, sample 5",
        f"  {path}:1",
        r'    "{\"text\": \"li"',
    ]
    assert run(save, "--iteration", "3", "--generation", "1", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["generation"] == 1
    assert found["samples"][0] == {
        "dataParallelRank": 0,
        "sample": 4,
        "documents": [{"path": str(path), "number": 3}],
    }


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--iteration", "5"], "--iteration 5: the record ends with iteration 4"),
        (["--iteration", "4", "--generation", "1"], "generation 1 has recorded nothing of iteration 4"),
        (["--iteration", "4", "--generation", "7"], "generation 7 has recorded nothing of iteration 4"),
    ],
)
def test_what_is_not_recorded_is_refused(
    words: list[str], problem: str, save: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(save, *words) == samples_command.REFUSED
    assert problem in capsys.readouterr().err


def test_a_directory_without_a_record_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path) == samples_command.REFUSED
    assert "has no folder samples" in capsys.readouterr().err
