"""The progress of a preparation, as each of its pods reports it."""

import json
import socket
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from megatron_contract.progress import PreparationProgress, ProgressReport
from megatron_trainer.data import blend, meter, sources_command
from megatron_trainer.data.blend import Worker
from megatron_trainer.data.check import Needs
from megatron_trainer.data.meter import Meter
from megatron_trainer.telemetry.server import ProgressServer

from tests.unit.trainer.data.corpus import TEXTS, source, write

if TYPE_CHECKING:
    from megatron_trainer.data.dataset import Dataset
    from megatron_trainer.data.documents import Position


def prepare_and_sample(
    folder: Path, tokenizer_dir: Path, kind: str, monkeypatch: pytest.MonkeyPatch, worker: Worker
) -> list[PreparationProgress]:
    """What the worker reports after every document, and at the end."""
    monkeypatch.setattr(meter, "_REFRESH_SECONDS", -1.0)
    monkeypatch.setattr(meter, "_LOG_SECONDS", -1.0)
    samples: list[PreparationProgress] = []
    gauge = Meter(lambda _: samples.append(gauge._last))
    found = source(folder, write(folder / "raw", kind))
    blend.prepare([found], folder / "out", tokenizer_dir, worker, append_eod=True, meter=gauge)
    return samples


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("kind", ["jsonl", "gz", "zst", "text", "parquet", "hf"])
def test_bytes_grow_to_the_total_and_the_rest_has_a_time(
    tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    samples = prepare_and_sample(tmp_path, tokenizer_dir, kind, monkeypatch, Worker(0, 1))
    done = [sample.bytes_done for sample in samples]
    assert len(done) == len(TEXTS)
    assert done == sorted(done)
    total = samples[0].bytes_total
    if kind != "parquet":
        files = [path for path in (tmp_path / "raw").iterdir() if path.name != "state.json"]
        assert total == sum(path.stat().st_size for path in files)
    assert total / 2 < done[-1] <= total
    assert samples[-1].documents <= len(TEXTS)
    assert all(sample.seconds_left is not None for sample in samples if sample.bytes_done > total / 100)


@dataclass
class Place:
    """A place in a shard."""

    read: int = 0

    def bytes_read(self) -> int:
        return self.read


@dataclass
class Work:
    """What a meter measures of a dataset of one shard, of which nothing is complete."""

    size: int

    @property
    def divided(self) -> list["Work"]:
        return [self]

    def counts(self) -> None:
        return None

    @property
    def work(self) -> Path:
        return Path("/nonexistent")


def test_the_rate_counts_from_the_first_document_and_is_none_before_a_share_of_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(meter.time, "monotonic", lambda: now)
    gauge, place = Meter(print), Place()
    gauge.begin([cast("Dataset", Work(20_000))])
    now += 72  # libraries are loaded

    def documents() -> Iterator[str]:
        nonlocal now
        for _ in range(200):
            place.read += 100
            now += 0.1
            yield "a chat"

    def rest() -> tuple[float | None, float | None]:
        gauge._refreshed = 0.0
        gauge.refresh(cast("Position", place))
        preparation = gauge.report().preparation
        assert preparation is not None
        return preparation.bytes_per_second, preparation.seconds_left

    seen = [rest() for _ in gauge.watched(documents(), cast("Position", place))]
    assert seen[0] == (None, None)
    assert seen[99] == (pytest.approx(1000, rel=0.02), pytest.approx(10, rel=0.02))
    assert max(left for _, left in seen if left is not None) < 21


@pytest.mark.usefixtures("small_shards")
def test_the_work_of_other_pods_counts(
    tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_and_sample(tmp_path, tokenizer_dir, "jsonl", monkeypatch, Worker(1, 2))
    found = source(tmp_path, write(tmp_path / "raw2", "jsonl") | {"path": f"{tmp_path}/raw/*.jsonl"})
    second = Meter(print)
    blend.prepare([found], tmp_path / "out", tokenizer_dir, Worker(1, 2), append_eod=True, meter=second)
    preparation = second.report().preparation
    assert preparation is not None
    assert preparation.documents == len(TEXTS)
    assert preparation.bytes_done == preparation.bytes_total


def test_the_check_of_the_data_is_a_step_and_ends_also_where_it_fails(
    tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gauge, steps = Meter(print), list[str]()

    def reported() -> str:
        preparation = gauge.report().preparation
        assert preparation is not None
        assert preparation.documents == len(TEXTS)
        return preparation.step

    def check(*_: object) -> None:
        steps.append(reported())
        raise ValueError("too few samples")

    monkeypatch.setattr(blend.check, "check_datasets", check)
    found = source(tmp_path, write(tmp_path / "raw", "jsonl"))
    needs = Needs(None, 64, 1, 1, "100,0,0", False, {str(found.output): 1.0})
    with pytest.raises(ValueError, match="too few"):
        blend.prepare(
            [found], tmp_path / "out", tokenizer_dir, Worker(0, 1), append_eod=True, needs=needs, meter=gauge
        )
    assert [*steps, reported()] == ["check", "build"]


def test_the_report_is_served_and_parsed_as_that_of_a_trainer(tmp_path: Path, tokenizer_dir: Path) -> None:
    gauge = Meter(print)
    found = source(tmp_path, write(tmp_path / "raw", "jsonl"))
    blend.prepare([found], tmp_path / "out", tokenizer_dir, Worker(0, 1), append_eod=True, meter=gauge)
    server = ProgressServer(0, gauge.report)
    server.start()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/progress", timeout=60) as answer:
            body: Any = json.load(answer)
    finally:
        server.shutdown()
        server.server_close()
    report = ProgressReport.parse(body)
    assert (report.phase, report.preparation) == ("preparing", gauge.report().preparation)


def test_a_port_that_is_taken_does_not_end_the_preparation(tmp_path: Path, tokenizer_dir: Path) -> None:
    settings = write(tmp_path / "raw", "jsonl") | {"output": str(tmp_path / "out" / "a_text_document")}
    words = ["--sources", json.dumps([settings]), "--output-dir", str(tmp_path / "out")]
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        _, result = sources_command.run(
            [*words, "--tokenizer-dir", str(tokenizer_dir), "--progress-port", port]
        )
    assert result is not None
    assert result.documents == len(TEXTS)
