"""What samples the iterations of a run have read, as its ranks record it over restarts."""

import errno
import json
import os
import random
from pathlib import Path
from typing import NoReturn

import pytest
from megatron_trainer.data.sample_history import SampleHistory, difference
from megatron_trainer.telemetry import sample_log
from megatron_trainer.telemetry.sample_log import NAME, SKIPPED, TRAINED, UNFINISHED, SampleLog, Start
from megatron_trainer.telemetry.sample_runs import RunsError, compress, expand

BATCH = 4
IN_ORDER = {"kind": "random", "order": "sequential"}


def start(generation: int = 1, resumed_from: int = 0, ranks: int = 2, **dataset: str) -> Start:
    return Start(generation, resumed_from, ranks, 100, IN_ORDER | dataset)


def train(folder: Path, started: Start, last: int, shift: int = 0, state: str = TRAINED) -> None:
    """Have all ranks record iterations up to `last`, which read BATCH consecutive samples together."""
    for rank in range(started.ranks):
        log = SampleLog(folder, rank, started)
        each = BATCH // started.ranks
        for iteration in range(started.resumed_from + 1, last + 1):
            first = (iteration - 1) * BATCH + rank * each + shift
            log.add(iteration, range(first, first + each), None, state)
        log.flush()


@pytest.mark.parametrize("seed", range(20))
def test_numbers_survive_their_compression(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(100):
        numbers = [chance.randrange(9) for _ in range(chance.randrange(30))]
        assert expand(compress(numbers)) == numbers
    assert expand(compress(range(50))) == list(range(50))


def test_a_rank_that_reads_every_nth_block_needs_one_run() -> None:
    numbers = [number for block in range(1000) for number in range(block * 8, block * 8 + 2)]
    assert compress(numbers) == [[0, 2, 8, 1000]]


@pytest.mark.parametrize(
    "runs", [None, [[0, 1 << 40]], [[0]], ["1"], [[0, 0]], [True], [[0, 1, 2, 0]], [[0, 1, 1 << 61, 9]]]
)
def test_damaged_runs_are_refused(runs: object) -> None:
    with pytest.raises(RunsError):
        expand(runs)


def test_iterations_after_the_checkpoint_of_a_later_generation_do_not_count(tmp_path: Path) -> None:
    train(tmp_path, start(), 11)
    train(tmp_path, start(2, 8), 10, shift=1000)
    history = SampleHistory(tmp_path)
    assert [(each.start.generation, each.first, each.last) for each in history.kept()] == [
        (1, 1, 8),
        (2, 9, 10),
    ]
    assert history.places()[8] == [28, 29, 30, 31]
    assert history.places()[9] == [1032, 1033, 1034, 1035]
    assert history.generation_of(11) is None, "it was discarded, and not done again"
    assert history.at(11, 1)[1].numbers_of(11, 11) == [42, 43]


def test_a_generation_with_fewer_ranks_continues(tmp_path: Path) -> None:
    train(tmp_path, start(), 8)
    train(tmp_path, start(2, 8, ranks=1), 12)
    history = SampleHistory(tmp_path)
    assert history.problems() == []
    assert history.places() == {at: list(range((at - 1) * 4, at * 4)) for at in range(1, 13)}


@pytest.mark.parametrize(
    ("shift", "problem"),
    [
        (-BATCH, "samples read again: [28, 4] (4 in all)"),
        (BATCH, "samples left out: [32, 4] (4 in all)"),
        (1, "samples left out: 32 (1 in all)"),
    ],
)
def test_a_resume_at_a_wrong_sample_is_a_problem(shift: int, problem: str, tmp_path: Path) -> None:
    train(tmp_path, start(), 9)
    train(tmp_path, start(2, 8), 12, shift)
    assert SampleHistory(tmp_path).problems() == [problem]


def test_a_rank_that_recorded_too_little_is_a_problem(tmp_path: Path) -> None:
    train(tmp_path, start(), 4)
    path = tmp_path / NAME.format(1)
    path.write_text(path.read_text().replace('"first": 1', '"first": 0'))
    assert SampleHistory(tmp_path).problems()[0] == (
        "data-parallel rank 1 has recorded nothing of 1 of iterations 1 to 4"
    )


def test_samples_in_random_order_may_be_read_once_in_each_epoch(tmp_path: Path) -> None:
    log = SampleLog(tmp_path, 0, Start(1, 0, 1, 8, {"kind": "lines", "order": "shuffled"}))
    for iteration, numbers in enumerate([[7, 2, 1], [0, 3, 6], [1, 7, 0]], start=1):
        log.add(iteration, numbers, None, TRAINED)
    log.flush()
    assert SampleHistory(tmp_path).problems() == []
    log.add(4, [7, 2, 3], None, TRAINED)
    log.flush()
    problem = "samples read more than 2 times in as many epochs: 7 (1 in all)"
    assert SampleHistory(tmp_path).problems() == [problem]


def test_other_samples_under_the_same_numbers_are_counted_for_themselves(tmp_path: Path) -> None:
    train(tmp_path, start(), 8)
    train(tmp_path, start(2, 8, index="of more iterations"), 9, shift=-32)
    assert SampleHistory(tmp_path).problems() == []


def test_an_iteration_that_a_rank_has_not_written_yet_is_not_recorded(tmp_path: Path) -> None:
    train(tmp_path, start(), 8)
    for rank, last in ((0, 12), (1, 10)):
        log = SampleLog(tmp_path, rank, start(2, 8))
        for iteration in range(9, last + 1):
            log.add(iteration, [iteration * 4 - 4 + rank * 2, iteration * 4 - 3 + rank * 2], None, TRAINED)
        log.flush()
    history = SampleHistory(tmp_path)
    assert history.last_iteration == 10
    assert history.problems() == []
    assert history.generation_of(11) is None


def test_skipped_and_unfinished_iterations_are_named(tmp_path: Path) -> None:
    train(tmp_path, start(), 2)
    train(tmp_path, start(2, 2), 3, state=SKIPPED)
    train(tmp_path, start(3, 3), 4, state=UNFINISHED)
    history = SampleHistory(tmp_path)
    assert history.last_iteration == 3
    assert history.at(3, 2)[0].state == SKIPPED
    assert history.at(4, 3)[0].state == UNFINISHED


def test_places_are_kept_beside_numbers(tmp_path: Path) -> None:
    log = SampleLog(tmp_path, 0, start(ranks=1))
    log.add(1, [0, 1], [17, 4], TRAINED)
    log.add(2, [2, 3], [9, 0], TRAINED)
    log.flush()
    history = SampleHistory(tmp_path)
    assert history.places() == {1: [4, 17], 2: [0, 9]}
    assert history.at(2, 1)[0].numbers_of(2, 2) == [2, 3]


def test_the_first_iteration_is_written_at_once_and_others_together(tmp_path: Path) -> None:
    log = SampleLog(tmp_path, 0, start(ranks=1))
    log.add(1, range(4), None, TRAINED)
    assert SampleHistory(tmp_path).last_iteration == 1
    for iteration in range(2, 1000):
        log.add(iteration, range(iteration * 4 - 4, iteration * 4), None, TRAINED)
    assert SampleHistory(tmp_path).last_iteration == 1
    log.flush()
    assert SampleHistory(tmp_path).last_iteration == 999
    path = tmp_path / NAME.format(0)
    assert len(path.read_text().splitlines()) == 3, "the start, the first iteration, and all others"


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    train(tmp_path, start(ranks=1), 4)
    path = tmp_path / NAME.format(0)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[-1][:20], json.dumps([1]), "null"]))
    assert SampleHistory(tmp_path).last_iteration == 4


def test_a_full_file_gets_no_more_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sample_log, "MOST_BYTES", 100)
    train(tmp_path, start(ranks=1), 4)
    size = (tmp_path / NAME.format(0)).stat().st_size
    train(tmp_path, start(2, 4, ranks=1), 8)
    assert (tmp_path / NAME.format(0)).stat().st_size == size
    assert "has 100 bytes: no more is recorded" in capsys.readouterr().out


def test_an_error_of_the_volume_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_args: object, **_kwargs: object) -> NoReturn:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    log = SampleLog(tmp_path, 0, start(ranks=1))
    log.add(1, range(4), None, TRAINED)
    with monkeypatch.context() as failing:
        failing.setattr(Path, "stat", fail)
        failing.setattr(Path, "open", fail)
        log.add(2, range(4, 8), None, TRAINED)
        log.flush()
    assert "cannot append" in capsys.readouterr().out
    log.add(3, range(8, 12), None, TRAINED)
    log.flush()
    assert SampleHistory(tmp_path).places() == {at: list(range(at * 4 - 4, at * 4)) for at in (1, 2, 3)}


def test_a_difference_names_the_first_iteration() -> None:
    assert difference({1: [0, 1]}, {1: [0, 1], 2: [2]}) is None
    assert difference({1: [0], 2: [3]}, {1: [0], 2: [2]}) == "iteration 2 read [3], expected [2]"
