"""The index of a run's samples, built by megatron-prepare with Megatron's own classes, before the run."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.trainer.gang import MODEL_FLAGS, Gang

ITERATIONS = 2
# What the operator gives megatron-prepare of the run's arguments.
RUN_FLAGS = ("--seq-length", "--global-batch-size", "--eval-iters", "--eval-interval", "--split")
# Less than half a document of any corpus here.
NO_VALIDATION = "9999999,1,0"


def index_flags(corpus: Path, cache: Path) -> list[str]:
    own = [word for flag in RUN_FLAGS for word in (flag, MODEL_FLAGS[MODEL_FLAGS.index(flag) + 1])]
    return [
        *own,
        *("--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", str(corpus / "tokenizer")),
        *("--data-path", str(corpus / "text_text_document")),
        *("--data-cache-path", str(cache)),
    ]


def build_index(flags: Sequence[str], iterations: int) -> str:
    command = [sys.executable, "-W", "ignore", "-m", "megatron_trainer.data.dataset_index"]
    command += [*flags, "--train-iters", str(iterations)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()[-1]


def files(cache: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in cache.iterdir()}


def test_a_run_reads_the_index_that_was_built_before_it_and_a_longer_run_gets_one_of_its_own(
    pod: Gang, corpus: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    assert build_index(index_flags(corpus, cache), ITERATIONS).startswith("4 new files of the index")
    before = files(cache)
    pod.start(0, extra=("--train-iters", str(ITERATIONS), "--data-cache-path", str(cache)))
    assert pod.wait() == [0], pod.log()[-3000:]
    assert files(cache) == before, "rank 0 built nothing"
    assert build_index(index_flags(corpus, cache), ITERATIONS + 1).startswith("4 new files")
    after = files(cache)
    assert {name: after[name] for name in before} == before


def test_a_run_of_two_sources_that_does_not_evaluate_trains_where_validation_has_no_document(
    pod: Gang, corpus: Path, tmp_path: Path
) -> None:
    cache, text = tmp_path / "cache", str(corpus / "text_text_document")
    blend = ("--data-path", "3", text, "1", text, "--split", NO_VALIDATION)
    build_index([*index_flags(corpus, cache), *blend], ITERATIONS)
    before = files(cache)
    assert not [name for name in before if "-valid-" in name]
    pod.start(0, extra=("--train-iters", str(ITERATIONS), "--data-cache-path", str(cache), *blend))
    assert pod.wait() == [0], pod.log()[-3000:]
    assert files(cache) == before, "rank 0 built nothing"
