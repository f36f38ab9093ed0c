"""Experiment tracking without ranks: what the rank writes, what follows it, and packages that are missing."""

from pathlib import Path

import pytest
import torch
from megatron_contract.tracking import Tracking, WandbRun
from megatron_trainer.tracking import processes, scalar_log, wandb_run
from megatron_trainer.tracking.scalar_log import ScalarLog, Scalars, load_position
from megatron_trainer.tracking.scalar_writer import ScalarWriter


def read(file: Path) -> list[Scalars]:
    return ScalarLog(file, 0).read_new()


def test_an_iteration_is_one_line_without_the_copies_over_samples(tmp_path: Path) -> None:
    writer, file = ScalarWriter(3), tmp_path / "scalars.jsonl"
    writer.write(file)
    assert not file.exists()
    writer.add(7, {"throughput": 2.0})
    writer.add_scalar("lm loss", torch.tensor([1.5]), 7)
    writer.add_scalar("lm loss vs samples", torch.tensor([1.5]), 56)
    writer.add_scalar("grad-norm", float("inf"), 7)
    writer.write(file)
    writer.add_scalar("lm loss validation", 4, 7)
    writer.write(file)
    iteration, evaluation = read(file)
    assert (iteration.iteration, iteration.generation) == (7, 3)
    assert iteration.values == {"throughput": 2.0, "lm loss": 1.5}
    assert evaluation.values == {"lm loss validation": 4.0}


def test_a_line_that_is_not_complete_is_read_later(tmp_path: Path) -> None:
    file = tmp_path / "scalars.jsonl"
    line = '{"iteration": %d, "generation": 1, "time": 1, "values": {"a": 1}}\n'
    file.write_text("torn{\n" + line % 1 + (line % 2)[:20])
    log = ScalarLog(file, 0)
    assert [each.iteration for each in log.read_new()] == [1]
    assert log.start_of_last == len("torn{\n")
    file.write_text("torn{\n" + line % 1 + line % 2)
    assert [each.iteration for each in log.read_new()] == [2]
    # The file of another run in the same place.
    file.write_text(line % 5)
    assert [each.iteration for each in log.read_new()] == [5]


def test_a_long_file_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scalar_log, "CHUNK_BYTES", 200)
    file = tmp_path / "scalars.jsonl"
    line = '{"iteration": %d, "generation": 1, "time": 1, "values": {"a": 1}}\n'
    file.write_text("".join(line % iteration for iteration in range(10)))
    log, found = ScalarLog(file, 0), []
    while part := log.read_new():
        assert len(part) < 4
        found += [each.iteration for each in part]
    assert found == list(range(10))


@pytest.mark.parametrize(
    "text", ["", "[]", '{"offset": 1}', '{"offset": "x", "highest": {}, "generation": 0}']
)
def test_a_position_that_cannot_be_read_is_that_of_a_new_tracker(tmp_path: Path, text: str) -> None:
    (tmp_path / "position").write_text(text)
    assert load_position(tmp_path / "position") == load_position(tmp_path / "missing")


def test_an_image_without_wandb_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = Tracking(wandb=WandbRun("p"))
    assert processes.why_absent(wandb) is None
    monkeypatch.setattr(wandb_run, "PACKAGES", tmp_path)
    monkeypatch.setattr(wandb_run, "find_spec", lambda _: None)
    assert processes.why_absent(Tracking(tensorboard=True)) is None
    problem = processes.why_absent(wandb)
    assert problem is not None
    assert problem.startswith(
        "spec.tracking.wandb: this image lacks the package wandb; install requirements-"
    )
