"""Which checkpoint is chosen, what is set aside and what is deleted."""

import errno
import fcntl
import json
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from megatron_trainer.checkpoints import selection
from megatron_trainer.flags import BRIDGE_FORMAT, FSDP_FORMAT
from torch.distributed import checkpoint as distributed_checkpoint
from torch.distributed.checkpoint import FileSystemWriter

SHARD_BYTES = 100


def write_checkpoint(root: Path, iteration: int) -> Path:
    """Write the parts of a torch_dist checkpoint that are checked."""
    path = selection.directory(root, iteration)
    path.mkdir(parents=True)
    storage = {
        (name, part): SimpleNamespace(relative_path=name, offset=part * 50, length=50)
        for name in ("__0_0.distcp", "__1_0.distcp")
        for part in range(2)
    }
    (path / ".metadata").write_bytes(pickle.dumps(SimpleNamespace(storage_data=storage)))
    for name in ("__0_0.distcp", "__1_0.distcp"):
        (path / name).write_bytes(b"x" * SHARD_BYTES)
    (path / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist"}))
    return path


def fail_reads(file: Path) -> None:
    """Have a file that can be opened, and of which each read fails with EIO."""
    file.unlink(missing_ok=True)
    file.symlink_to("/proc/self/mem")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for iteration in (10, 20, 30):
        write_checkpoint(tmp_path, iteration)
    (tmp_path / selection.TRACKER).write_text("30")
    return tmp_path


def test_the_newest_complete_checkpoint_is_chosen_and_nothing_changes(root: Path) -> None:
    before = sorted(root.rglob("*"))
    assert selection.choose(root) == selection.Choice(30, [])
    assert sorted(root.rglob("*")) == before


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "metadata.json is missing": (
        lambda path: (path / "metadata.json").unlink(),
        "metadata.json is missing: the save did not finish",
    ),
    "metadata.json is torn": (
        lambda path: (path / "metadata.json").write_text('{"shard'),
        "metadata.json cannot be read",
    ),
    ".metadata is missing": (
        lambda path: (path / ".metadata").unlink(),
        ".metadata is missing: the save did not finish",
    ),
    ".metadata is torn": (
        lambda path: (path / ".metadata").write_bytes((path / ".metadata").read_bytes()[:40]),
        ".metadata cannot be read",
    ),
    ".metadata is empty": (lambda path: (path / ".metadata").write_bytes(b""), ".metadata cannot be read"),
    ".metadata has a wrong length in it": (
        lambda path: (path / ".metadata").write_bytes(
            pickle.PROTO + b"\x04" + pickle.FRAME + (2**60).to_bytes(8, "little")
        ),
        ".metadata cannot be read",
    ),
    ".metadata is a directory": (
        lambda path: [(path / ".metadata").unlink(), (path / ".metadata").mkdir()],
        ".metadata is missing: the save did not finish",
    ),
    "a shard is missing": (lambda path: (path / "__1_0.distcp").unlink(), "shard __1_0.distcp is missing"),
    "metadata.json is empty": (
        lambda path: (path / "metadata.json").write_bytes(b""),
        "metadata.json cannot be read",
    ),
    "a shard is empty": (
        lambda path: (path / "__0_0.distcp").write_bytes(b""),
        "shard __0_0.distcp has 0 of 100 bytes",
    ),
    "a shard is one byte short": (
        lambda path: (path / "__1_0.distcp").write_bytes(b"x" * (SHARD_BYTES - 1)),
        "shard __1_0.distcp has 99 of 100 bytes",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES, ids=str)
def test_a_broken_checkpoint_is_set_aside_with_the_reason_when(damage: str, root: Path) -> None:
    hurt, reason = DAMAGES[damage]
    hurt(selection.directory(root, 30))
    choice = selection.choose(root)
    assert choice.iteration == 20
    assert (root / selection.TRACKER).read_text() == "20"
    aside = root / "iter_0000030.broken-1"
    assert (aside / selection.REASON_FILE).read_text().startswith(reason)
    assert reason in choice.repairs[0]
    assert not selection.directory(root, 30).exists()


@pytest.mark.parametrize("name", ["metadata.json", ".metadata"])
def test_a_read_error_is_not_damage(name: str, root: Path) -> None:
    file = selection.directory(root, 30) / name
    fail_reads(file)
    before = sorted(root.rglob("*"))
    for read in (selection.choose, selection.newest_complete, lambda root: selection.prune(root, 1)):
        with pytest.raises(OSError, match=os.strerror(errno.EIO)) as failed:
            read(root)
        assert failed.value.filename == str(file)
    assert sorted(root.rglob("*")) == before


def test_too_little_memory_is_not_damage(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def allocate(_content: bytes) -> None:
        raise MemoryError

    monkeypatch.setattr(selection, "_shard_lengths", allocate)
    with pytest.raises(OSError, match=os.strerror(errno.ENOMEM)):
        selection.choose(root)
    assert selection.iterations(root) == [30, 20, 10]


def test_the_same_iteration_can_be_set_aside_twice(root: Path) -> None:
    for _ in range(2):
        (selection.directory(root, 30) / ".metadata").unlink()
        selection.choose(root)
        write_checkpoint(root, 30)
    assert (root / "iter_0000030.broken-1").is_dir()
    assert (root / "iter_0000030.broken-2").is_dir()


@pytest.mark.parametrize("text", ["garbage", "", "20", "9999", "30\x00"])
def test_a_wrong_tracker_is_repaired(text: str, root: Path) -> None:
    (root / selection.TRACKER).write_text(text)
    choice = selection.choose(root)
    assert choice.iteration == 30
    assert (root / selection.TRACKER).read_text() == "30"
    assert len(choice.repairs) == 1


def test_a_missing_tracker_does_not_lose_the_checkpoints(root: Path) -> None:
    (root / selection.TRACKER).unlink()
    assert selection.choose(root).iteration == 30
    assert (root / selection.TRACKER).read_text() == "30"


def test_a_tracker_without_a_complete_checkpoint_is_set_aside(
    tmp_path: Path,
) -> None:
    (tmp_path / selection.TRACKER).write_text("30")
    choice = selection.choose(tmp_path)
    assert choice.iteration is None
    assert not (tmp_path / selection.TRACKER).exists()
    assert (tmp_path / f"{selection.TRACKER}.broken-1").read_text() == "30"


def test_a_release_checkpoint_is_left_to_megatron(tmp_path: Path) -> None:
    (tmp_path / "release").mkdir()
    (tmp_path / selection.TRACKER).write_text("release")
    assert selection.choose(tmp_path) == selection.Choice(None, [])
    assert (tmp_path / selection.TRACKER).read_text() == "release"


def test_a_missing_directory_has_no_checkpoint(tmp_path: Path) -> None:
    assert selection.choose(tmp_path / "nowhere") == selection.Choice(None, [])


def test_pruning_keeps_the_newest_complete_checkpoints(root: Path) -> None:
    selection.prune(root, 2)
    assert selection.iterations(root) == [30, 20]


def test_pruning_does_not_count_a_broken_checkpoint_and_never_deletes_the_newest_complete_one(
    root: Path,
) -> None:
    (selection.directory(root, 30) / ".metadata").unlink()
    selection.prune(root, 1)
    assert selection.iterations(root) == [30, 20]


def test_pruning_keeps_only_the_newest_checkpoints_set_aside(root: Path) -> None:
    for _ in range(selection.BROKEN_KEPT + 2):
        (selection.directory(root, 30) / ".metadata").unlink()
        selection.choose(root)
        write_checkpoint(root, 30)
    selection.prune(root, 5)
    assert len(list(root.glob("iter_*.broken-*"))) == selection.BROKEN_KEPT


@pytest.mark.parametrize("name", ["metadata.json", ".metadata"])
def test_pruning_keeps_a_checkpoint_while_it_is_exported(root: Path, name: str) -> None:
    exported = root / "iter_0000010"
    if name == ".metadata":
        (exported / "metadata.json").unlink()
    with selection.read_locked(exported):
        selection.prune(root, 1)
        assert selection.iterations(root) == [30, 10]
    selection.prune(root, 1)
    assert selection.iterations(root) == [30]


def test_a_folder_without_metadata_can_be_read_without_a_lock(tmp_path: Path) -> None:
    with selection.read_locked(tmp_path / "nothing"):
        pass


def test_pruning_keeps_a_locked_checkpoint_and_deletes_it_afterwards(root: Path) -> None:
    messages: list[str] = []
    with (root / "iter_0000010" / "metadata.json").open() as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        selection.prune(root, 1, log=messages.append)
        assert selection.iterations(root) == [30, 10]
        assert "kept checkpoint iter_0000010: a reader has locked it" in messages
    selection.prune(root, 1)
    assert selection.iterations(root) == [30]


def deny_writes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody open the files in a directory to write, as those of another user; root could."""
    opened = Path.open

    def open_file(file: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if file.parent == path and mode not in ("r", "rb"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))
        return opened(file, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", open_file)


def test_a_checkpoint_that_cannot_be_deleted_keeps_no_other_from_its_deletion(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[str] = []
    kept = selection.directory(root, 20)
    deny_writes(kept, monkeypatch)
    selection.prune(root, 1, log=messages.append)
    assert selection.iterations(root) == [30, 20]
    assert [text for text in messages if kept.name in text] == [
        f"kept checkpoint {kept.name}, which cannot be deleted: "
        f"[Errno 13] Permission denied: '{kept / 'metadata.json'}'"
    ]


def test_a_checkpoint_set_aside_that_cannot_be_deleted_is_kept(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, other = root / "iter_0000020.broken-1", root / "iter_0000010.broken-1"
    for path in (kept, other):
        selection.directory(root, int(path.name[5:12])).rename(path)
    deny_writes(kept, monkeypatch)
    selection.prune_set_aside(root, 0, print)
    assert kept.is_dir()
    assert not other.exists()


def test_a_rollback_sets_newer_checkpoints_aside_with_the_cause(root: Path) -> None:
    selection.roll_back(root, 10, [30, 20], "lm loss is nan at iteration 31")
    assert selection.choose(root) == selection.Choice(10, [])
    aside = root / "iter_0000030.rolled-back-1"
    assert selection.why_incomplete(aside) is None
    assert (aside / selection.REASON_FILE).read_text() == (
        "the run was rolled back to iteration 10: lm loss is nan at iteration 31\n"
    )


def test_a_rollback_to_the_beginning_removes_the_tracker(root: Path) -> None:
    selection.roll_back(root, None, [30, 20, 10], "cause")
    assert selection.choose(root) == selection.Choice(None, [])
    assert selection.read_tracker(root) is None


def test_an_interrupted_deletion_is_finished(root: Path) -> None:
    selection.directory(root, 10).rename(root / ".deleting-iter_0000010")
    selection.prune_set_aside(root, 2, log=print)
    assert not (root / ".deleting-iter_0000010").exists()


def test_the_legacy_format_is_complete_if_no_file_is_empty(tmp_path: Path) -> None:
    path = selection.directory(tmp_path, 10) / "mp_rank_00"
    path.mkdir(parents=True)
    assert selection.newest_complete(tmp_path, "torch") is None
    (path / "model_optim_rng.pt").write_bytes(b"x")
    assert selection.newest_complete(tmp_path, "torch") == 10


@pytest.mark.parametrize("missing", ["train_state.pt", "run_config.yaml"])
def test_a_checkpoint_of_bridge_is_incomplete_without_its_last_files(missing: str, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, 10)
    for name in {"train_state.pt", "run_config.yaml"} - {missing}:
        (path / name).touch()
    assert selection.why_incomplete(path) is None
    why = selection.why_incomplete(path, BRIDGE_FORMAT)
    assert why == f"{missing} is missing: the save did not finish"
    (path / missing).touch()
    assert selection.why_incomplete(path, BRIDGE_FORMAT) is None


def test_a_complete_checkpoint_is_read_once(root: Path) -> None:
    opened: list[str] = []
    sys.addaudithook(
        lambda event, details: opened.append(str(details[0])) if event in ("open", "os.scandir") else None
    )
    selection.newest_complete(root)
    of_newest = [path for path in opened if "iter_0000030" in path]
    assert sorted(of_newest) == sorted(
        [
            str(root / "iter_0000030"),
            *(str(root / "iter_0000030" / n) for n in (".metadata", "metadata.json")),
        ]
    )
    selection.choose(root)
    selection.newest_complete_iterations(root, 1)
    assert [path for path in opened if "iter_0000030" in path] == of_newest


def test_a_checkpoint_that_is_replaced_or_could_not_be_loaded_is_checked_again(root: Path) -> None:
    assert selection.newest_complete(root) == 30
    (root / "iter_0000030" / "__0_0.distcp").unlink()
    assert selection.newest_complete(root) == 20
    shard = root / "iter_0000020" / "__0_0.distcp"
    shard.write_bytes(shard.read_bytes()[:-1])
    selection.forget_complete()
    assert selection.newest_complete(root) == 10


def write_by_torch(root: Path, iteration: int) -> Path:
    """Write a checkpoint as Megatron does with FSDP: by torch's own writer, without metadata.json."""
    path = selection.directory(root, iteration)
    state = {"model": {f"layer{n}": torch.full((50,), float(n)) for n in range(3)}, "iteration": iteration}
    distributed_checkpoint.save(state, storage_writer=FileSystemWriter(path), no_dist=True)
    return path


TORN: dict[str, tuple[Callable[[Path], object], str]] = {
    "before its metadata": (
        lambda path: (path / ".metadata").unlink(),
        ".metadata is missing: the save did not",
    ),
    "in its metadata": (
        lambda path: (path / ".metadata").write_bytes((path / ".metadata").read_bytes()[:-20]),
        ".metadata cannot be read",
    ),
    "in a shard": (
        lambda path: (path / "__0_0.distcp").write_bytes((path / "__0_0.distcp").read_bytes()[:-1]),
        "shard __0_0.distcp has",
    ),
    "before a shard": (lambda path: (path / "__0_0.distcp").unlink(), "shard __0_0.distcp is missing"),
}


@pytest.mark.parametrize("where", TORN)
def test_a_checkpoint_of_torchs_writer_that_was_torn_is_passed_over(where: str, tmp_path: Path) -> None:
    tear, reason = TORN[where]
    for iteration in (10, 20):
        write_by_torch(tmp_path, iteration)
    (tmp_path / selection.TRACKER).write_text("20")
    assert selection.choose(tmp_path, FSDP_FORMAT) == selection.Choice(20, [])
    tear(selection.directory(tmp_path, 20))
    selection.forget_complete()
    chosen = selection.choose(tmp_path, FSDP_FORMAT)
    assert chosen.iteration == 10
    assert reason in chosen.repairs[0]
    assert selection.read_tracker(tmp_path) == "10"


def test_a_checkpoint_of_torchs_writer_was_written_when_its_metadata_was(tmp_path: Path) -> None:
    path = write_by_torch(tmp_path, 10)
    os.utime(path / ".metadata", (1000.0, 1000.0))
    assert selection.written_at(path) == 1000.0
    (path / ".metadata").unlink()
    assert selection.written_at(path) is None


def test_a_checkpoint_was_written_when_its_last_metadata_was(root: Path) -> None:
    path = selection.directory(root, 10)
    os.utime(path / ".metadata", (1000.0, 1000.0))
    os.utime(path / "metadata.json", (2000.0, 2000.0))
    assert selection.written_at(path) == 2000.0
