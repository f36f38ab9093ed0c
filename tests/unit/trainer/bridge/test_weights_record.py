"""When recorded weights are the same, and when they are others."""

import uuid
from pathlib import Path

import pytest
from megatron_trainer.bridge.weights_record import WeightsRecord, digest
from megatron_trainer.weights.audit import AUDIT_FILE, Audit
from megatron_trainer.weights.tensors import TensorRecord

VALUES, OTHERS = "a" * 64, "b" * 64


def imported(folder: Path, sha256: str = VALUES) -> Path:
    """What an import writes; the index has a random name of each save."""
    (folder / "release").mkdir(parents=True, exist_ok=True)
    (folder / "release" / ".metadata").write_text(str(uuid.uuid4()))
    Audit("import", "huggingFace", {"a": TensorRecord((4,), "float32", sha256)}).write(folder)
    return folder


def recorded(weights: Path) -> WeightsRecord:
    return WeightsRecord(weights, weights, digest(weights), None, "start")


def test_weights_that_are_imported_again_are_the_same(tmp_path: Path) -> None:
    record = recorded(imported(tmp_path))
    imported(tmp_path)
    assert record.why_unusable() is None


def test_an_import_of_another_model_has_other_weights(tmp_path: Path) -> None:
    record = recorded(imported(tmp_path))
    imported(tmp_path, OTHERS)
    assert record.why_unusable() == "has other weights now"


def test_a_record_of_the_index_of_an_import_is_accepted(tmp_path: Path) -> None:
    """As of an image before the one that resumes."""
    imported(tmp_path)
    audit = (tmp_path / AUDIT_FILE).read_bytes()
    (tmp_path / AUDIT_FILE).unlink()
    record = recorded(tmp_path)
    (tmp_path / AUDIT_FILE).write_bytes(audit)
    assert record.why_unusable() is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"conversion": "import"}', '{"conversion": "export"}'])
def test_without_an_import_s_audit_the_index_counts(text: str, tmp_path: Path) -> None:
    imported(tmp_path)
    (tmp_path / AUDIT_FILE).write_text(text)
    record = recorded(tmp_path)
    assert record.why_unusable() is None
    (tmp_path / "release" / ".metadata").write_text("saved again")
    assert record.why_unusable() == "has other weights now"
