"""The audit finds every difference between a conversion's source and its result."""

import json
from pathlib import Path

import pytest
import torch
from megatron_trainer.weights.audit import AUDIT_FILE, Audit, Tie, check_tie, compare, imported_headers
from megatron_trainer.weights.tensors import record, records


def _tensors() -> dict[str, torch.Tensor]:
    return {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}


def test_equal_tensors_have_no_problem() -> None:
    assert compare(records(_tensors().items()), records(_tensors().items())) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"a": torch.arange(6.0).reshape(3, 2)}, "a has shape [3, 2] instead of [2, 3]"),
        ({"b": torch.ones(4, dtype=torch.float16)}, "b has dtype float16 instead of bfloat16"),
        ({"a": torch.arange(6.0).reshape(2, 3) * (1 + 2**-23)}, "a has other values"),
        ({"c": torch.ones(1)}, "c is unexpected"),
    ],
)
def test_a_difference_is_named(change: dict[str, torch.Tensor], problem: str) -> None:
    assert compare(records(_tensors().items()), records((_tensors() | change).items())) == [problem]


def test_a_missing_tensor_is_named() -> None:
    assert compare(records(_tensors().items()), {}) == ["a is missing", "b is missing"]


def test_the_checksum_covers_the_bytes_in_c_order() -> None:
    square = torch.arange(9.0).reshape(3, 3)
    assert record(square.T) == record(square.T.contiguous())
    assert record(square.T) != record(square)
    # -0.0 == 0.0, but the bytes differ.
    assert record(torch.tensor([0.0])) != record(torch.tensor([-0.0]))


@pytest.mark.parametrize(
    ("tie", "problems"),
    [
        (Tie(True, True), 0),
        (Tie(False, False), 0),
        (Tie(True, False), 1),
        (Tie(False, True), 1),
    ],
)
def test_an_output_layer_that_is_wrongly_tied_is_a_problem(tie: Tie, problems: int) -> None:
    assert len(check_tie(tie)) == problems


def test_the_summary_counts_problems_and_names_the_first() -> None:
    audit = Audit(
        "import", "huggingFace", records(_tensors().items()), [f"t{n} is missing" for n in range(7)]
    )
    assert audit.summary().startswith("audit failed: 7 problems in 2 tensors, 32 bytes: t0 is missing; t1")
    assert audit.summary().endswith("; and 2 more")


def test_the_file_of_an_import_gives_back_shapes_and_dtypes(tmp_path: Path) -> None:
    Audit("import", "huggingFace", records(_tensors().items()), tie=Tie(False, False)).write(tmp_path)
    written = json.loads((tmp_path / AUDIT_FILE).read_text())
    assert written["passed"] is True
    assert written["tied"] == {"expected": False, "found": False}
    headers = imported_headers(tmp_path)
    assert {name: (header.shape, header.dtype) for name, header in headers.items()} == {
        "a": ((2, 3), "float32"),
        "b": ((4,), "bfloat16"),
    }


@pytest.mark.parametrize("text", ["", "[]", '{"conversion": "import"}', '{"conversion": "export"}'])
def test_another_file_gives_no_headers(text: str, tmp_path: Path) -> None:
    (tmp_path / AUDIT_FILE).write_text(text)
    assert imported_headers(tmp_path) == {}
