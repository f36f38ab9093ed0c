"""Sources in object storage: the real megatron-prepare reads from a real server of the S3 protocol."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.data import blend, documents, objects, sources
from megatron_trainer.data.blend import Worker
from megatron_trainer.data.objects import Store
from megatron_trainer.data.preparation_error import PreparationError
from megatron_trainer.data.sources import Source

from testkit import object_store
from testkit.errors import CommandFailedError
from testkit.kubectl import find_tool
from testkit.object_store import BUCKET, ObjectStore
from testkit.ports import free_port
from testkit.waiting import wait_until
from tests.unit.trainer.data.corpus import TEXTS, decoded, lines, with_template, write
from tests.unit.trainer.data.disturbed_store import disturbed

CHAT = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    try:
        find_tool("versitygw")
    except CommandFailedError:
        pytest.skip("no versitygw: neither .cluster/bin/versitygw (`localcluster binaries`) nor one on PATH")
    with object_store.running(tmp_path_factory.mktemp("store") / "s3") as found:
        yield found


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in object_store.CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def folder(request: pytest.FixtureRequest) -> str:
    """A prefix of keys that no other test writes."""
    return re.sub(r"\W+", "-", request.node.name)


def source(tmp_path: Path, endpoint: str, settings: dict[str, Any]) -> Source:
    text = json.dumps([settings | {"output": str(tmp_path / "out" / "corpus_text_document")}])
    [found] = sources.parse_sources(text, Store(endpoint))
    return found


def prepare(tmp_path: Path, tokenizer_dir: Path, *found: Source, index: int = 0, count: int = 1) -> bytes:
    blend.prepare(found, tmp_path / "out", tokenizer_dir, Worker(index, count), append_eod=True)
    data = tmp_path / "out" / "corpus_text_document.bin"
    return data.read_bytes() if data.exists() else b""


def refusal(tmp_path: Path, tokenizer_dir: Path, found: Source) -> PreparationError:
    """The error of a source, which must leave nothing that passes for a dataset."""
    with pytest.raises(PreparationError) as refused:
        prepare(tmp_path, tokenizer_dir, found)
    assert not Path(f"{found.output}.bin").exists()
    assert not list((tmp_path / "out").glob("objects/*/done.json"))
    return refused.value


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("kind", ["jsonl", "gz", "zst", "text", "parquet"])
def test_each_format_gives_what_its_files_on_a_volume_give(
    tmp_path: Path, tokenizer_dir: Path, store: ObjectStore, folder: str, kind: str
) -> None:
    settings = write(tmp_path / "raw", kind)
    store.put_folder(tmp_path / "raw", folder)
    settings["path"] = settings["path"].replace(f"{tmp_path}/raw", f"s3://{BUCKET}/{folder}")
    found = source(tmp_path, store.endpoint, settings)
    prepare(tmp_path, tokenizer_dir, found)
    assert decoded(found.output, tokenizer_dir) == TEXTS


def test_conversations_are_read_from_objects(
    tmp_path: Path, tokenizer_dir: Path, store: ObjectStore, folder: str
) -> None:
    store.put(f"{folder}/c.jsonl", json.dumps(CHAT).encode() + b"\n")
    found = source(tmp_path, store.endpoint, {"path": f"s3://{BUCKET}/{folder}/*.jsonl", "format": "chat"})
    template = with_template(tokenizer_dir, tmp_path / "tokenizer")
    prepare(tmp_path, template, found)
    assert decoded(found.output, template) == ["<user>hi\n<assistant>yes\n"]


def test_a_shard_has_no_line_twice_whatever_ranges_are_asked_for(
    store: ObjectStore, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(f"{folder}/a.jsonl", lines(TEXTS[:30]))
    found = source(tmp_path, store.endpoint, {"path": f"s3://{BUCKET}/{folder}/a.jsonl", "format": "jsonl"})
    files = sources.find_files(found)
    for size, block in ((90, 64), (333, 7), (1500, 4096)):
        monkeypatch.setattr(sources, "SHARD_BYTES", size)
        monkeypatch.setattr(objects, "BLOCK", block)
        divided = sources.divide(found, files)
        assert [t for shard in divided for t in documents.read_documents(found, shard)] == TEXTS[:30]


@pytest.mark.usefixtures("small_shards")
def test_a_worker_reads_the_ranges_of_its_shards_only(
    tmp_path: Path, store: ObjectStore, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "BLOCK", 1000)
    data = lines(TEXTS * 3)
    store.put(f"{folder}/a.jsonl", data)
    asked: list[tuple[int, int]] = []

    def watch(request: str) -> None:
        if found := re.search(r"bytes=(\d+)-(\d+)", request):
            asked.append((int(found[1]), int(found[2]) + 1))

    with disturbed(store, watch) as endpoint:
        found = source(tmp_path, endpoint, {"path": f"s3://{BUCKET}/{folder}/a.jsonl", "format": "jsonl"})
        [*shards] = sources.divide(found, sources.find_files(found))
        [*_] = documents.read_documents(found, shards[4])
    shard = shards[4]
    assert shard.end is not None
    assert min(start for start, _ in asked) == shard.start - 1
    assert max(end for _, end in asked) <= shard.end + 2000
    assert max(end - start for start, end in asked) <= 1000


def command(
    folder: Path, tokenizer_dir: Path, endpoint: str, settings: dict[str, Any], index: int, count: int
) -> subprocess.Popen[bytes]:
    text = json.dumps([settings | {"output": str(folder / "out" / "corpus_text_document")}])
    start = "from megatron_trainer.data import sources; sources.SHARD_BYTES = 1500; "
    start += "from megatron_trainer.data.prepare import main; main()"
    words = ["--sources", text, "--output-dir", str(folder / "out"), "--tokenizer-dir", str(tokenizer_dir)]
    words += ["--endpoint-url", endpoint, "--append-eod", "--pods", str(count), "--workers", "1"]
    environment = os.environ | {
        "JOB_COMPLETION_INDEX": str(index),
        "MEGATRON_TERMINATION_LOG": str(folder / f"end-{index}"),
        "MEGATRON_SECRET_VARIABLES": "AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY",
    }
    return subprocess.Popen([sys.executable, "-c", start, *words], env=environment, stdout=subprocess.DEVNULL)


def test_two_workers_one_of_them_killed_write_what_one_writes(
    tmp_path: Path, tokenizer_dir: Path, store: ObjectStore, folder: str
) -> None:
    store.put(f"{folder}/a.jsonl", lines(TEXTS * 4))
    store.put(f"{folder}/b.jsonl", lines(TEXTS[::-1] * 2))
    settings = {"path": f"s3://{BUCKET}/{folder}/*.jsonl", "format": "jsonl"}
    shared = tmp_path / "shared"
    shared.mkdir()
    victim = command(shared, tokenizer_dir, store.endpoint, settings, 0, 2)
    work = shared / "out" / "objects"
    wait_until(
        "three shards",
        lambda: victim.poll() is not None or len([*work.glob("*/shards-*/*.lengths")]) >= 3,
        interval=0.01,
    )
    assert victim.poll() is None, "it was killed while it had work left"
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    both = [command(shared, tokenizer_dir, store.endpoint, settings, index, 2) for index in (1, 0)]
    assert [each.wait() for each in both] == [0, 0]
    alone = tmp_path / "alone"
    assert (
        prepare(alone, tokenizer_dir, source(alone, store.endpoint, settings))
        == (shared / "out" / "corpus_text_document.bin").read_bytes()
    )
    assert decoded(alone / "out" / "corpus_text_document", tokenizer_dir) == TEXTS * 4 + TEXTS[::-1] * 2


def test_what_is_prepared_is_not_read_again_before_an_object_changes(
    tmp_path: Path, tokenizer_dir: Path, store: ObjectStore, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(f"{folder}/a.jsonl", lines(["one", "two"]))
    found = source(tmp_path, store.endpoint, {"path": f"s3://{BUCKET}/{folder}/*.jsonl", "format": "jsonl"})
    prepare(tmp_path, tokenizer_dir, found)
    with monkeypatch.context() as patch:
        patch.setattr(blend, "read_documents", lambda *_: pytest.fail("a document was read again"))
        prepare(tmp_path, tokenizer_dir, found)
    store.put(f"{folder}/a.jsonl", lines(["one", "owt"]))
    with pytest.raises(PreparationError, match=r"the files of s3://.* changed .*another data\.prepare\.name"):
        prepare(tmp_path, tokenizer_dir, found)


@pytest.mark.parametrize("when", ["before its shard", "within its shard", "after its shard"])
def test_an_object_that_changes_while_it_is_read_is_an_error(
    tmp_path: Path,
    tokenizer_dir: Path,
    store: ObjectStore,
    folder: str,
    monkeypatch: pytest.MonkeyPatch,
    when: str,
) -> None:
    monkeypatch.setattr(objects, "BLOCK", 500)
    name = f"{folder}/a.jsonl"
    store.put(name, lines(TEXTS))
    found = source(tmp_path, store.endpoint, {"path": f"s3://{BUCKET}/{name}", "format": "jsonl"})
    read = blend.read_documents

    def changing(*words: Any) -> Iterator[str]:
        if when == "before its shard":
            store.put(name, lines(TEXTS[::-1]))
        for number, text in enumerate(read(*words)):
            if number == 20 and when == "within its shard":
                store.put(name, lines(TEXTS[::-1]))
            yield text
        if when == "after its shard":
            store.put(name, lines(TEXTS[::-1]))

    monkeypatch.setattr(blend, "read_documents", changing)
    error = refusal(tmp_path, tokenizer_dir, found)
    assert error.code == ExitCode.BAD_DATA
    assert re.search(r"^data\.sources\[0\]\.path: .* changed while .* prepared; wait until", str(error))


@pytest.mark.parametrize("disturbance", [503, 500, -1])
def test_an_error_that_ends_by_itself_is_not_seen(
    tmp_path: Path, tokenizer_dir: Path, store: ObjectStore, folder: str, disturbance: int
) -> None:
    store.put(f"{folder}/a.jsonl", lines(TEXTS))
    requests: list[str] = []

    def twice(request: str) -> int | None:
        requests.append(request)
        return disturbance if requests.count(request) <= 2 else None

    with disturbed(store, twice) as endpoint:
        found = source(tmp_path, endpoint, {"path": f"s3://{BUCKET}/{folder}/*.jsonl", "format": "jsonl"})
        prepare(tmp_path, tokenizer_dir, found)
    assert decoded(found.output, tokenizer_dir) == TEXTS
    assert any("bytes=" in request and requests.count(request) == 3 for request in requests)


def test_a_store_that_stays_away_is_worth_another_try_of_the_pod(
    tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "ATTEMPTS", 1)
    endpoint = f"http://127.0.0.1:{free_port()}"
    found = source(tmp_path, endpoint, {"path": f"s3://{BUCKET}/a.jsonl", "format": "jsonl"})
    error = refusal(tmp_path, tokenizer_dir, found)
    assert error.code == ExitCode.WORKER_DIED
    assert str(error).startswith(
        f"data.sources[0].path: s3://{BUCKET}/a.jsonl: {endpoint} cannot be read: Could not connect"
    )
    assert "check data.prepare.objectStorage.endpointUrl" in str(error)


ENDS = {
    "no bucket": (
        "s3://absent/a.jsonl",
        {},
        r"path: .* has no bucket absent; correct the path, or .*endpointUrl",
    ),
    "no match": (
        "s3://corpus/{}/*.csv",
        {},
        r"path: no object matches .*/\*\.csv; s3://corpus/.*/ has a\.jsonl, b/; correct the path",
    ),
    "a folder": (
        "s3://corpus/{}",
        {},
        r"path: s3://corpus/.* is a folder; name its objects: s3://corpus/.*/\*",
    ),
    "wrong secret": (
        "s3://corpus/{}/*",
        {"AWS_SECRET_ACCESS_KEY": "another secret"},
        r"path: .*: the credentials are refused \(SignatureDoesNotMatch\); correct the Secret",
    ),
    "no credentials": (
        "s3://corpus/{}/*",
        {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": "true"},
        r"path: .*: there are no credentials; set data\.prepare\.objectStorage\.secretName",
    ),
    "no pattern": ("s3://corpus/{}/**b", {}, r"path: .* is not a pattern: .*; write \*\* alone"),
}


@pytest.mark.parametrize("case", ENDS.values(), ids=ENDS)
def test_what_cannot_be_found_is_refused_by_its_field(
    tmp_path: Path,
    tokenizer_dir: Path,
    store: ObjectStore,
    folder: str,
    monkeypatch: pytest.MonkeyPatch,
    case: tuple[str, dict[str, str], str],
) -> None:
    store.put(f"{folder}/a.jsonl", lines(["one"]))
    store.put(f"{folder}/b/c.jsonl", lines(["two"]))
    path, environment, message = case
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = source(tmp_path, store.endpoint, {"path": path.format(folder), "format": "jsonl"})
    error = refusal(tmp_path, tokenizer_dir, found)
    assert error.code == ExitCode.BAD_DATA
    assert re.search(r"^data\.sources\[0\]\." + message, str(error)), str(error)


def test_a_key_that_may_not_read_the_bucket_is_refused(
    tmp_path: Path, tokenizer_dir: Path, store: ObjectStore
) -> None:
    with disturbed(store, lambda _: 403) as endpoint:
        found = source(tmp_path, endpoint, {"path": f"s3://{BUCKET}/a.jsonl", "format": "jsonl"})
        error = refusal(tmp_path, tokenizer_dir, found)
    assert "access is denied; allow s3:ListBucket and s3:GetObject" in str(error)


@pytest.mark.usefixtures("small_shards")
def test_a_bad_line_is_named_by_object_and_line(
    tmp_path: Path, tokenizer_dir: Path, store: ObjectStore, folder: str
) -> None:
    store.put(f"{folder}/a.jsonl", lines(TEXTS) + b"oops\n" + lines(TEXTS))
    found = source(tmp_path, store.endpoint, {"path": f"s3://{BUCKET}/{folder}/a.jsonl", "format": "jsonl"})
    text = str(refusal(tmp_path, tokenizer_dir, found))
    assert f"s3://{BUCKET}/{folder}/a.jsonl:{len(TEXTS) + 1} is not one line of JSON" in text


@pytest.mark.parametrize("kind", ["gz", "parquet"])
def test_an_object_that_was_cut_is_an_error(
    tmp_path: Path, tokenizer_dir: Path, store: ObjectStore, folder: str, kind: str
) -> None:
    settings = write(tmp_path / "raw", kind)
    [path] = (tmp_path / "raw").iterdir()
    store.put(f"{folder}/{path.name}", path.read_bytes()[:-9])
    settings["path"] = f"s3://{BUCKET}/{folder}/*"
    text = str(refusal(tmp_path, tokenizer_dir, source(tmp_path, store.endpoint, settings)))
    assert re.search(rf"s3://{BUCKET}/{folder}/{path.name} is not .*; copy it again", text), text


NAMES = ("a.txt", ".b.txt", "c/d.txt", "c/.e/f.txt", "c/[g].txt", "c/h/i.txt", ".j/k.txt", "l.md", "m?.txt")
PATTERNS = ("*.txt", "**/*.txt", "*/*.txt", "c/**/*.txt", ".j/*", "c/[g].txt", "c/[dg].txt", "c/.e/*.txt")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_means_the_same_names_as_on_a_volume(
    tmp_path: Path, store: ObjectStore, pattern: str
) -> None:
    for name in NAMES:
        path = tmp_path / "volume" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
        if not (store.folder / "names" / name).exists():
            store.put(f"names/{name}", b"x")
    on_volume, stored = f"{tmp_path}/volume", f"s3://{BUCKET}/names"
    expected = sources.find_files(Source("s", f"{on_volume}/{pattern}", "text", tmp_path))
    found = sources.find_files(
        Source("s", f"{stored}/{pattern}", "text", tmp_path, store=Store(store.endpoint))
    )
    assert [str(each).removeprefix(stored) for each in found] == [
        str(each).removeprefix(on_volume) for each in expected
    ]


def test_the_progress_counts_the_bytes_of_the_objects(
    store: ObjectStore, folder: str, tmp_path: Path
) -> None:
    data = lines(TEXTS)
    store.put(f"{folder}/a.jsonl", data)
    found = source(tmp_path, store.endpoint, {"path": f"s3://{BUCKET}/{folder}/*.jsonl", "format": "jsonl"})
    [shard] = sources.divide(found, sources.find_files(found))
    position = documents.Position()
    assert shard.size == len(data)
    reached = [position.bytes_read() for _ in documents.read_documents(found, shard, None, position)]
    assert reached[0] == len(lines(TEXTS[:1]))
    assert reached == sorted(reached)
    assert reached[-1] == len(data)


def test_the_termination_message_has_no_credentials(
    tmp_path: Path, tokenizer_dir: Path, store: ObjectStore, folder: str
) -> None:
    store.put(f"{folder}/a.jsonl", object_store.SECRET.encode() + b"\n")
    settings = {"path": f"s3://{BUCKET}/{folder}/{object_store.KEY}", "format": "jsonl"}
    assert command(tmp_path, tokenizer_dir, store.endpoint, settings, 0, 1).wait() == ExitCode.BAD_DATA
    end = (tmp_path / "end-0").read_text()
    assert "no object matches" in end
    assert object_store.KEY not in end
    assert "<value of a Secret>" in end
