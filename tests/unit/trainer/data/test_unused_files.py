"""What no run uses any more is removed from the data volume, and nothing else."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_contract.preparation import index_folder
from megatron_trainer.data import dataset_index, prepare, unused_files
from megatron_trainer.data.unused_files import KEPT_DAYS, remove_unused
from megatron_trainer.worker import prepared_index

from tests.unit.trainer.data.test_check_blend import run, write

UID = "0b9f2a64-7d1e-4c35-9a8b-{:012d}"
PARTS = ("description.txt", "document_index.npy", "sample_index.npy", "shuffle_index.npy")
REMOVE = (
    "import sys; from pathlib import Path; from megatron_trainer.data.unused_files import remove_unused; "
)
"""The beginning of a process that cleans a volume."""


def age(path: Path, days: float) -> None:
    moment = time.time() - days * 24 * 3600
    os.utime(path, (moment, moment), follow_symlinks=False)


def build_index(volume: Path, number: int, days: float, name: str = "run") -> Path:
    """The index of a run, as it is after so many days."""
    folder = volume / index_folder(name, UID.format(number))
    folder.mkdir(parents=True)
    for part in PARTS:
        file = folder / f"{number:032x}-GPTDataset-train-{part}"
        if part.endswith("npy"):
            np.save(file, np.arange(8))
        else:
            file.write_text("{}")
        age(file, days)
    age(folder, days)
    return folder


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_an_index_is_removed_a_month_after_it_was_built_and_not_before(tmp_path: Path) -> None:
    old, new = build_index(tmp_path, 1, KEPT_DAYS + 1), build_index(tmp_path, 2, KEPT_DAYS - 1)
    remove_unused(tmp_path)
    assert not old.exists()
    assert len(names(new)) == 4


def test_packed_samples_are_removed_a_month_after_they_were_packed(tmp_path: Path) -> None:
    folders = []
    for number, days in enumerate((KEPT_DAYS + 1, KEPT_DAYS - 1), start=1):
        folder = tmp_path / index_folder("run", UID.format(number)) / "0123456789abcdef"
        folder.mkdir(parents=True)
        for name in ("training.idx.parquet", "validation.idx.parquet", ".training.idx.parquet.17"):
            (folder / name).touch()
            age(folder / name, days)
        folders.append(folder)
    (folders[0].parent / "notes").mkdir()
    remove_unused(tmp_path)
    assert names(folders[0].parent) == ["notes"], "what is not this project's stays"
    assert len(names(folders[1])) == 3


def test_a_folder_in_which_a_new_index_is_built_keeps_that(tmp_path: Path) -> None:
    folder = build_index(tmp_path, 1, KEPT_DAYS + 1)
    unfinished = folder / ".unfinished-7"
    unfinished.mkdir()
    new = unfinished / f"{2:032x}-GPTDataset-train-{PARTS[0]}"
    new.write_text("{}")
    about_to_build = tmp_path / index_folder("next", UID.format(2))
    about_to_build.mkdir()
    remove_unused(tmp_path)
    assert names(folder) == [".unfinished-7", f".unfinished-7/{new.name}"]
    assert about_to_build.is_dir()


def test_what_a_killed_build_left_is_removed_with_the_folder(tmp_path: Path) -> None:
    folder = build_index(tmp_path, 1, KEPT_DAYS + 1)
    unfinished = folder / ".unfinished-7"
    unfinished.mkdir()
    (unfinished / f"{2:032x}-GPTDataset-train-{PARTS[1]}").write_bytes(b"\x93NUMPY")
    age(unfinished / f"{2:032x}-GPTDataset-train-{PARTS[1]}", KEPT_DAYS + 1)
    remove_unused(tmp_path)
    assert names(tmp_path / "prepared") == ["index"]


def test_nothing_else_of_the_users_is_removed(tmp_path: Path) -> None:
    """Files of other names, other folders, and whatever a link in the place of either leads to."""
    folder, elsewhere = build_index(tmp_path, 1, KEPT_DAYS + 1), tmp_path / "elsewhere"
    shutil.copytree(folder, elsewhere)
    (folder / "notes.md").write_text("mine")
    (folder / f"{9:032x}-GPTDataset-train-{PARTS[1]}").symlink_to(elsewhere / "of.npy")
    (folder / ".unfinished-1").symlink_to(elsewhere)
    for path in ("index/mine", "objects/1"):
        shutil.copytree(elsewhere, tmp_path / "prepared" / path)
    (tmp_path / "prepared" / "index" / f"linked.{UID.format(3)}").symlink_to(elsewhere)
    for path in tmp_path.rglob("*"):
        age(path, KEPT_DAYS + 1)
    before = names(tmp_path)
    removed = {
        str(path.relative_to(tmp_path)) for path in folder.iterdir() if path.name.startswith("0" * 31 + "1")
    }
    remove_unused(tmp_path)
    assert names(tmp_path) == [name for name in before if name not in removed]


@pytest.mark.parametrize("linked", ["prepared", "prepared/index", "prepared/checked"])
def test_a_folder_of_the_projects_that_is_a_link_is_left_alone(tmp_path: Path, linked: str) -> None:
    volume, elsewhere = tmp_path / "volume", tmp_path / "elsewhere"
    build_index(volume, 1, KEPT_DAYS + 1)
    (volume / "prepared" / "checked").mkdir()
    (volume / "prepared" / "checked" / f".{'a' * 32}.json.host.1").write_text("")
    age(volume / "prepared" / "checked" / f".{'a' * 32}.json.host.1", KEPT_DAYS + 1)
    (volume / linked).rename(elsewhere)
    (volume / linked).symlink_to(elsewhere)
    before = names(elsewhere)
    remove_unused(volume)
    assert names(elsewhere) == before


def test_a_pass_that_is_killed_at_any_file_is_completed_by_the_next(tmp_path: Path) -> None:
    kill = "import os, signal; unlink = os.unlink; left = [int(sys.argv[2])]\n"
    kill += "def dying(*words, **options):\n    left[0] -= 1\n"
    kill += "    os.kill(os.getpid(), signal.SIGKILL) if left[0] < 0 else unlink(*words, **options)\n"
    kill += "os.unlink = dying; remove_unused(Path(sys.argv[1]))"
    for files in range(5):
        folder = build_index(tmp_path, files, KEPT_DAYS + 1)
        kept = build_index(tmp_path, 100 + files, 0)
        words = [sys.executable, "-c", REMOVE + kill, str(tmp_path), str(files)]
        assert subprocess.run(words, check=False).returncode == (-signal.SIGKILL if files < 4 else 0)
        assert len(names(folder) if folder.exists() else ()) == 4 - files
        remove_unused(tmp_path)
        assert not folder.exists()
        assert len(names(kept)) == 4


def test_passes_of_several_jobs_at_once_do_not_disturb_one_another(tmp_path: Path) -> None:
    for number in range(60):
        build_index(tmp_path, number, KEPT_DAYS + 1 if number % 2 else 0)
    words = [sys.executable, "-c", f"{REMOVE}remove_unused(Path(sys.argv[1]))", str(tmp_path)]
    jobs = [
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(4)
    ]
    outputs = [job.communicate()[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0] * 4, outputs
    assert not [text for text in outputs if "stay" in text]
    assert len(list((tmp_path / "prepared" / "index").iterdir())) == 30
    assert len(list((tmp_path / "prepared" / "index").glob("*/*"))) == 30 * 4


def test_an_index_is_built_though_another_job_removes_its_empty_folder_at_that_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, remove = tmp_path / "index" / "run", shutil.rmtree
    (folder / ".unfinished-0").mkdir(parents=True)

    def removed_by_another(path: Path, **_: object) -> None:
        remove(folder if path.name.endswith("-0") else path)

    def write_file(flags: list[str]) -> None:
        (
            Path(flags[flags.index("--data-cache-path") + 1]) / f"{1:032x}-GPTDataset-train-{PARTS[0]}"
        ).write_text("{}")

    monkeypatch.setattr(shutil, "rmtree", removed_by_another)
    monkeypatch.setattr(dataset_index, "_build_all", write_file)
    assert dataset_index.build(["--seq-length", "8"], folder) == 1
    assert names(folder) == [f"{1:032x}-GPTDataset-train-{PARTS[0]}"]


def test_a_run_starts_though_its_index_is_removed_while_it_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, cache, copy = build_index(tmp_path, 1, KEPT_DAYS + 1), tmp_path / "cache", shutil.copyfile

    def copied_meanwhile(source: Path, target: Path) -> None:
        copy(source, target)
        remove_unused(tmp_path)

    monkeypatch.setattr(shutil, "copyfile", copied_meanwhile)
    assert prepared_index.take(cache, folder) == 1
    assert len(names(cache)) == 1, "Megatron builds what is missing"


def test_a_record_of_a_check_is_removed_once_its_file_has_changed_or_is_gone(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a"), write(tmp_path / "b")
    own = ("--vocab-size", "301")
    assert run(a, b, own=own)[0] == ExitCode.OK
    checked = tmp_path / "prepared" / "checked"
    remove_unused(tmp_path)
    assert len(names(checked)) == 2
    os.utime(tmp_path / "a.bin", ns=(1, 1))
    (tmp_path / "b.bin").unlink()
    remove_unused(tmp_path)
    assert names(checked) == []
    assert run(a, own=own)[0] == ExitCode.OK
    remove_unused(tmp_path)
    assert len(names(checked)) == 1


def test_records_that_are_not_of_this_project_stay(tmp_path: Path) -> None:
    checked = tmp_path / "prepared" / "checked"
    checked.mkdir(parents=True)
    other = {"file": [str(tmp_path / "gone.bin"), "uint16", 1, 2], "ids": [0, 1]}
    for number, text in enumerate((json.dumps(other), "[" * 50_000, '{"file": ["\\u0000", "a"]}', "")):
        (checked / f"{number:032x}.json").write_text(text)
    (checked / f"{'b' * 32}.json").symlink_to(checked / f"{0:032x}.json")
    os.mkfifo(checked / f"{'c' * 32}.json")
    before = names(checked)
    remove_unused(tmp_path)
    assert names(checked) == before


def test_a_volume_that_cannot_be_written_or_has_nothing_prepared_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    remove_unused(tmp_path / "missing")
    remove_unused(tmp_path)
    assert capsys.readouterr().out == ""
    folder = build_index(tmp_path, 1, KEPT_DAYS + 1)

    def refuse(name: str, **_: object) -> None:
        raise OSError(30, "Read-only file system", name)

    monkeypatch.setattr(os, "unlink", refuse)
    remove_unused(tmp_path)
    assert len(names(folder)) == 4
    assert "files that no run uses stay: [Errno 30] Read-only file system" in capsys.readouterr().out


def test_each_job_that_prepares_or_checks_begins_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done: list[str] = []
    monkeypatch.setattr(prepare, "remove_unused", lambda: done.append("removed"))
    monkeypatch.setattr(prepare, "_run", lambda _: done.append("ran") or (ExitCode.OK, "", None))
    monkeypatch.setenv("MEGATRON_TERMINATION_LOG", str(tmp_path / "log"))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit):
        prepare.main(["--check-blend", "[]"])
    assert done == ["removed", "ran"]
    assert unused_files.remove_unused.__defaults__ == (Path("/data"),)
