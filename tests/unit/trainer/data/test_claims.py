"""Workers that share shards: each shard is built by one of them, unless that one falls silent."""

import hashlib
import json
import sys
from pathlib import Path

import pytest
from megatron_contract.environment import ENV_RUN_ID
from megatron_trainer.data import blend, shards, sources
from megatron_trainer.data.claims import SILENT_SECONDS, Claims
from megatron_trainer.data.shards import lengths_file, records_file

from tests.unit.trainer.data.corpus import TEXTS, decoded, prepare, source, write


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    return records_file(tmp_path, 3)


def test_a_shard_is_claimed_by_one_worker_until_it_is_complete(shard: Path, clock: Clock) -> None:
    mine, theirs = Claims(clock), Claims(clock)
    assert mine.take(shard, "0 a")
    assert not theirs.take(shard, "1 a")
    mine.release(shard)
    assert theirs.take(shard, "1 a")
    theirs.release(shard)
    assert not [*shard.parent.iterdir()]


def test_a_worker_that_is_started_again_has_its_claims(shard: Path, clock: Clock) -> None:
    assert Claims(clock).take(shard, "0 a")
    assert Claims(clock).take(shard, "0 a")
    assert not Claims(clock).take(shard, "0 b"), "worker 0 of another recipe with this source"


def test_a_claim_ends_when_its_worker_has_been_silent(shard: Path, clock: Clock) -> None:
    owner, other = Claims(clock), Claims(clock)
    assert owner.take(shard, "0 a")
    texts = owner.kept(shard, "0 a", iter(TEXTS))
    for _ in range(3):
        assert not other.take(shard, "1 a")
        clock.now += SILENT_SECONDS - 1
        next(texts)
        next(texts)  # the time is read when the next document is asked for
    assert not other.take(shard, "1 a")
    clock.now += SILENT_SECONDS
    assert other.take(shard, "1 a")


def test_the_documents_of_a_claimed_shard_are_passed_on(shard: Path, clock: Clock) -> None:
    owner = Claims(clock)
    owner.take(shard, "0 a")
    assert [*owner.kept(shard, "0 a", iter(TEXTS))] == TEXTS


def test_a_folder_that_is_gone_is_an_error(tmp_path: Path, clock: Clock) -> None:
    with pytest.raises(FileNotFoundError):
        Claims(clock).take(records_file(tmp_path / "joined", 0), "0 a")


def _claimed(folder: Path, tokenizer_dir: Path, settings: dict[str, str]) -> tuple[sources.Source, Path]:
    """A source of which a worker has claimed the first of several shards, and then did nothing."""
    found = source(folder, settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blend, "build_shards", lambda *_: None)
        prepare(folder, tokenizer_dir, found, index=1, count=2)
    [work] = (folder / "out").glob("objects/*/shards-*")
    assert Claims().take(records_file(work, 0), "2 other")
    return found, work


@pytest.mark.usefixtures("small_shards")
def test_a_worker_leaves_shards_that_others_build_and_ends(tmp_path: Path, tokenizer_dir: Path) -> None:
    found, work = _claimed(tmp_path, tokenizer_dir, write(tmp_path / "raw", "jsonl"))
    prepare(tmp_path, tokenizer_dir, found, index=1, count=2)
    divided = sources.divide(found, sources.find_files(found))
    assert [number for number in range(len(divided)) if not lengths_file(work, number).is_file()] == [0]


@pytest.mark.usefixtures("small_shards")
def test_a_worker_leaves_the_shard_of_the_same_worker_of_another_recipe(
    tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = source(tmp_path, write(tmp_path / "raw", "jsonl"))

    def left() -> int:
        """Work through the shards. Returns how many others have left to build."""
        prepare(tmp_path, tokenizer_dir, found, index=1, count=2)
        [work] = (tmp_path / "out").glob("objects/*/shards-*")
        divided = sources.divide(found, sources.find_files(found))
        return sum(not lengths_file(work, number).is_file() for number in range(len(divided)))

    monkeypatch.setenv(ENV_RUN_ID, "1-of-a-recipe")
    with monkeypatch.context() as killed:
        killed.setattr(shards, "write_shard", lambda *_: sys.exit())
        with pytest.raises(SystemExit):
            left()
    monkeypatch.setenv(ENV_RUN_ID, "2-of-a-recipe")
    assert left() == 1
    monkeypatch.setenv(ENV_RUN_ID, "1-of-a-recipe")
    assert left() == 0, "it is started again"


def test_pods_of_one_name_in_two_namespaces_write_to_names_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = set()
    for uid in ("0d5b1a0e-9a55-4d0c-8d40-8f6c1a4f1f6e", "f3a1c9d2-9a55-4d0c-8d40-8f6c1a4f1f6e"):
        monkeypatch.setenv(ENV_RUN_ID, uid)
        names.add(shards.temporary(tmp_path / "000003.tokens").name)
    assert len(names) == 2
    assert all(name.startswith(".000003.tokens.") for name in names)


@pytest.mark.usefixtures("small_shards")
def test_worker_0_waits_for_the_shards_that_others_build(
    tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, work = _claimed(tmp_path, tokenizer_dir, write(tmp_path / "raw", "jsonl"))
    again = tmp_path / "again"
    other, there = _claimed(again, tokenizer_dir, write(tmp_path / "raw", "jsonl"))
    Claims().release(records_file(there, 0))
    prepare(again, tokenizer_dir, other, index=1, count=2)

    def builds(_: float) -> None:
        for path in (records_file, lengths_file):
            path(work, 0).write_bytes(path(there, 0).read_bytes())

    monkeypatch.setattr("time.sleep", builds)
    prepare(tmp_path, tokenizer_dir, found, count=2)
    assert decoded(found.output, tokenizer_dir) == TEXTS


@pytest.mark.usefixtures("small_shards")
def test_worker_0_builds_the_shards_of_a_silent_worker(
    tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = _claimed(tmp_path, tokenizer_dir, write(tmp_path / "raw", "jsonl"))
    clock = Clock()

    def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr(blend, "Claims", lambda: Claims(clock))
    monkeypatch.setattr("time.sleep", sleep)
    prepare(tmp_path, tokenizer_dir, found, count=2)
    assert decoded(found.output, tokenizer_dir) == TEXTS
    assert clock.now >= 1000 + SILENT_SECONDS


@pytest.mark.parametrize(
    ("mebibytes", "shards", "size"), [(3, 1, 3), (128, 16, 8), (1024, 64, 16), (65536, 1024, 64)]
)
def test_shards_are_smaller_where_the_source_is(
    tmp_path: Path, mebibytes: int, shards: int, size: int
) -> None:
    for name in ("a", "b"):
        with (tmp_path / f"{name}.jsonl").open("wb") as file:
            file.truncate(mebibytes << 19)
    found = source(tmp_path, {"path": f"{tmp_path}/a.jsonl", "format": "jsonl"})
    divided = sources.divide(found, [tmp_path / "a.jsonl", tmp_path / "b.jsonl"])
    assert sum(shard.size for shard in divided) == mebibytes << 20
    assert max(shard.size for shard in divided) <= size << 20
    assert len(divided) in (shards, shards + 1)


def test_datasets_of_earlier_releases_are_found(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"{}\n")
    found = source(tmp_path, {"path": str(path), "format": "jsonl"})
    depends = [1, 64 << 20, "jsonl", "text", None, "tokenizer", 3, [[str(path), 3, path.stat().st_mtime_ns]]]
    expected = hashlib.sha256(json.dumps(depends).encode()).hexdigest()[:32]
    assert sources.content_digest(found, [path], "tokenizer", 3) == expected


def test_shards_of_another_division_are_neither_used_nor_left(
    tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = source(tmp_path, write(tmp_path / "raw", "jsonl"))
    for size in (900, 1500):
        # The address has the size for the datasets of earlier releases, which is not changed again.
        monkeypatch.setattr(blend, "divide", _divided(monkeypatch, size))
        prepare(tmp_path, tokenizer_dir, found, index=1, count=2)
    works = [*(tmp_path / "out").glob("objects/*/shards-*")]
    assert len(works) == 2
    (works[0].parent / "shards").mkdir()
    prepare(tmp_path, tokenizer_dir, found)
    assert decoded(found.output, tokenizer_dir) == TEXTS
    *made, settings = sorted(path.name for path in works[0].parent.iterdir())
    assert made == ["data.bin", "data.idx", "done.json"]
    assert settings.startswith("source-")


def _divided(monkeypatch: pytest.MonkeyPatch, size: int) -> object:
    divide = sources.divide

    def divided(found: sources.Source, files: list[Path]) -> list[sources.Shard]:
        with monkeypatch.context() as patch:
            patch.setattr(sources, "SHARD_BYTES", size)
            return divide(found, files)

    return divided
