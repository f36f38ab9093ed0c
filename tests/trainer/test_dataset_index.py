"""The index of a run's samples, built by megatron-prepare with Megatron's own classes, before the run."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.data import dataset_index
from megatron_trainer.worker import prepared_index

from tests.trainer.gang import MODEL_FLAGS, Gang

ITERATIONS = 2
BUILT = "files of the index of the samples in"
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


def build_index(flags: Sequence[str], iterations: int, *into: str) -> str:
    command = [sys.executable, "-W", "ignore", "-m", "megatron_trainer.data.dataset_index", *into]
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
    assert BUILT not in pod.log()
    assert build_index(index_flags(corpus, cache), ITERATIONS + 1).startswith("4 new files")
    after = files(cache)
    assert {name: after[name] for name in before} == before


def test_rank_0_reports_an_index_that_no_job_has_built(pod: Gang, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    pod.start(0, extra=("--train-iters", str(ITERATIONS), "--data-cache-path", str(cache)))
    assert pod.wait() == [0], pod.log()[-3000:]
    assert f"rank 0 has built {len(files(cache))} {BUILT} {cache} in " in pod.log()


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


def test_a_run_takes_the_index_from_the_data_volume_where_no_check_could_mount_its_own(
    pod: Gang, corpus: Path, tmp_path: Path
) -> None:
    cache, folder = tmp_path / "run" / "data-cache", tmp_path / "data" / "prepared" / "index" / "run"
    flags = index_flags(corpus, cache)
    build_index(flags, ITERATIONS + 1, "--into", str(folder))
    earlier = files(folder)
    text = build_index(flags, ITERATIONS, "--into", str(folder))
    assert text == f"4 new files of the index in {folder}"
    assert not cache.exists()
    assert len(files(folder)) == len(earlier) == 4, "those of the edited recipe take the place of others"
    assert not files(folder).keys() & earlier.keys()
    assert prepared_index.take(cache, folder) == 4
    before = files(cache)
    pod.start(0, extra=("--train-iters", str(ITERATIONS), "--data-cache-path", str(cache)))
    assert pod.wait() == [0], pod.log()[-3000:]
    assert files(cache) == before, "rank 0 built nothing"
    assert prepared_index.take(cache, folder) == 0, "what a restart finds stays as it is"


@pytest.mark.parametrize(
    ("uid", "folder"),
    [
        ("0b9f2a64-7d1e-4c35-9a8b-57d1a0f7d6c2", "llama3.1-8b.0b9f2a64-7d1e-4c35-9a8b-57d1a0f7d6c2"),
        ("", "llama3.1-8b"),
    ],
    ids=["of a cluster", "of a file"],
)
def test_the_folder_of_the_index_is_that_which_the_operator_renders(
    monkeypatch: pytest.MonkeyPatch, uid: str, folder: str
) -> None:
    monkeypatch.setenv("MEGATRON_RUN_ID", uid)
    cache = Path("/checkpoints/llama3.1-8b/data-cache")
    assert prepared_index.folder_of(cache) == Path("/data/prepared/index") / folder


def test_only_arrays_and_descriptions_are_taken_from_the_data_volume(tmp_path: Path) -> None:
    """Megatron would unpickle objects, and whoever fills the volume is not the one who trains."""
    cache, folder = tmp_path / "cache", tmp_path / "index"
    folder.mkdir()
    name = f"{'a' * 32}-GPTDataset-train-"
    np.save(folder / f"{name}shuffle_index.npy", np.arange(4))
    np.save(folder / f"{name}sample_index.npy", np.array([{"an": "object"}]), allow_pickle=True)
    (folder / "z.sh").write_text("exit")
    (folder / f"{name}description.txt").symlink_to(folder / "z.sh")
    prepared_index.take(cache, folder)
    assert {path.name for path in cache.iterdir()} <= {f"{name}shuffle_index.npy"}
    (folder / f"{name}sample_index.npy").unlink()
    prepared_index.take(cache, folder)
    assert {path.name for path in cache.iterdir()} == {f"{name}shuffle_index.npy"}


def test_a_volume_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data" / "index"

    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system", str(folder))

    for variable in ("RANK", "WORLD_SIZE", "MEGATRON_PLATFORM", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(variable, "0")  # set for its own process, and restored by this
    monkeypatch.setattr(Path, "mkdir", refuse)
    flags = ["--seq-length", "8", "--data-cache-path", "/checkpoints/run/data-cache"]
    assert dataset_index.main(["--into", str(folder), *flags]) == ExitCode.BAD_DATA
    assert capsys.readouterr().out == f"{folder} cannot be written (Read-only file system)\n"
