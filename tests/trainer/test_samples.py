"""The samples that each iteration reads: recorded by the ranks, none repeated or lost by a resume."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from megatron_trainer.data import samples_command

from testkit.faults.table import check_samples
from tests.trainer.gang import SAVE_INTERVAL, TRAIN_ITERS, Gang
from tests.trainer.test_recovery import set_flags

KILL_AT = SAVE_INTERVAL + 3
BATCH = 8


def all_of(places: dict[int, list[int]]) -> list[int]:
    return [each for iteration in places.values() for each in iteration]


def run_with_a_killed_rank(run: Gang) -> None:
    """Train to the end, with a rank that is killed after a checkpoint and three iterations more."""
    run.hold_after(KILL_AT)
    run.start()
    run.await_iteration(KILL_AT)
    run.await_checkpoint(SAVE_INTERVAL)
    run.kill_rank(0)
    assert run.wait() == [0] * run.nodes, run.log()[-3000:]
    (incident,) = run.incidents()
    assert incident["resumedFrom"] == SAVE_INTERVAL


def test_a_killed_run_reads_what_an_undisturbed_one_does_in_each_iteration(
    gang: Gang, undisturbed: Gang
) -> None:
    run_with_a_killed_rank(gang)
    killed, whole = gang.samples(), undisturbed.samples()
    check_samples(killed, whole.places(), TRAIN_ITERS)
    assert killed.problems() == whole.problems() == []
    assert sorted(all_of(killed.places())) == list(range(TRAIN_ITERS * BATCH))
    assert [(each.start.generation, each.first, each.last) for each in killed.kept()] == [
        (1, 1, SAVE_INTERVAL),
        (2, SAVE_INTERVAL + 1, TRAIN_ITERS),
    ]
    assert list(killed.at(1, 1)) == [0, 1], "both data-parallel ranks"


def test_an_iteration_prints_its_documents_and_their_text(
    undisturbed: Gang, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert samples_command.run([str(undisturbed.save), "--iteration", "3", "--text", "30", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(each["dataParallelRank"], each["sample"]) for each in found["samples"]] == [
        *((0, 16), (0, 17), (0, 20), (0, 21)),
        *((1, 18), (1, 19), (1, 22), (1, 23)),
    ]
    parts = [part for each in found["samples"] for part in each["documents"]]
    assert {part["path"] for part in parts} == {str(corpus / "text_text_document")}
    sources = "".join(path.read_text() for path in Path(os.__file__).parent.rglob("*.py") if readable(path))
    texts = [part["text"].replace("<|endoftext|>", "") for part in parts]
    assert any(len(text) == 30 for text in texts)
    # A character of several bytes may be cut.
    assert all(text in sources for text in texts if "\ufffd" not in text)


def readable(path: Path) -> bool:
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize(
    ("by", "problem"),
    [
        pytest.param(-BATCH, f"samples read again: [{SAVE_INTERVAL * BATCH - BATCH}, {BATCH}]", id="repeats"),
        pytest.param(BATCH, f"samples left out: [{SAVE_INTERVAL * BATCH}, {BATCH}]", id="skips"),
    ],
)
def test_a_resume_is_found_that_a_batch(by: int, problem: str, pod: Gang, undisturbed: Gang) -> None:
    pod.inject({"what": "shift-samples", "by": by, "generations": [2]})
    run_with_a_killed_rank(pod)
    found, whole = pod.samples(), undisturbed.samples()
    assert found.problems() == [f"{problem} ({BATCH} in all)"]
    first = f"samples that differ from the undisturbed run's: iteration {SAVE_INTERVAL + 1} "
    with pytest.raises(AssertionError, match=first):
        check_samples(found, whole.places(), TRAIN_ITERS)


SAMPLES = {"--train-iters": TRAIN_ITERS * BATCH, "--train-samples": 152}
"""Of a run, by the flag that sets its length."""


def grow_batch(run: Gang) -> None:
    """Have batches of 4 samples until 40 are read, then of 8: in all 24 iterations."""
    run.flags[run.flags.index("--lr-decay-iters")] = "--lr-decay-samples"
    run.flags += ["--rampup-batch-size", "4", "4", "40"]
    run.length = ["--train-samples", str(SAMPLES["--train-samples"])]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(grow_batch, id="a batch that grows"),
        pytest.param(
            lambda run: set_flags(run, "--dataloader-type cyclic --num-workers 0"),
            id="random order, read by the rank itself",
        ),
    ],
)
def test_no_sample_is_repeated_or_lost_with(change: Callable[[Gang], object], pod: Gang) -> None:
    change(pod)
    run_with_a_killed_rank(pod)
    found = pod.samples()
    assert found.problems() == []
    places = found.places()
    assert sorted(places) == list(range(1, found.last_iteration + 1))
    read = all_of(places)
    assert len(read) == len(set(read)) == SAMPLES[pod.length[0]]
