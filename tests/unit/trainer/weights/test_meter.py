"""The progress of a conversion, as its pod serves it."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from megatron_trainer.weights.meter import Meter, sizes
from megatron_trainer.weights.tensors import Header

from testkit.ports import free_port

torch = pytest.importorskip("torch", reason="make setup-trainer")


def progress(meter: Meter) -> tuple[Any, ...] | None:
    last = meter.report().conversion
    return last and (last.step, last.tensors_done, last.tensors_total, last.bytes_done, last.bytes_total)


def test_each_tensor_counts_once_it_is_taken_and_an_audit_counts_those_of_all_passes() -> None:
    meter = Meter()
    assert progress(meter) is None
    tensors = {"a": torch.zeros(4), "b": torch.zeros(2, dtype=torch.bfloat16)}
    meter.begin("convert", {"a": 16, "b": 4})
    make = meter.counted(tensors.__getitem__)
    assert progress(meter) == ("convert", 0, 2, 0, 20)
    for _ in range(2):
        assert make("a") is tensors["a"], "a tensor that is made again counts once"
    assert progress(meter) == ("convert", 1, 2, 16, 20)
    make("b")
    meter.begin("audit", {"a": 16, "b": 4}, {"c": 16})
    again = meter.counted(tensors.__getitem__)
    again("a"), again("b")
    assert progress(meter) == ("audit", 2, 3, 20, 36)
    taken = meter.watched([("c", tensors["a"])])
    next(taken)
    assert progress(meter) == ("audit", 2, 3, 20, 36), "its values are being compared"
    assert list(taken) == []
    assert progress(meter) == ("audit", 3, 3, 36, 36)


def test_the_progress_is_served() -> None:
    port = free_port()
    meter = Meter()
    meter.begin("convert", {"a": 16})
    assert meter.serve(port) is None
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/progress") as answer:
        report = json.load(answer)
    assert report["phase"] == "converting"
    expected = {"step": "convert", "tensorsDone": 0, "tensorsTotal": 1, "bytesDone": 0, "bytesTotal": 16}
    assert report["conversion"] == expected
    assert f"the progress is not served at port {port}" in (Meter().serve(port) or "")


def test_tensors_of_which_only_the_header_is_there_have_no_size() -> None:
    headers = {"a": Header(Path("a"), (3, 2), "bfloat16"), "b": Header(None, (3,), "float32")}
    assert sizes(headers) == {"a": 12}
