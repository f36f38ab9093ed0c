"""The destination of a conversion appears only when it is complete."""

from pathlib import Path

import pytest
from megatron_trainer.weights import conversion, destination
from megatron_trainer.weights.audit import AUDIT_FILE, Audit
from megatron_trainer.weights.conversion_error import AuditError, ConversionError, DestinationExistsError


def test_a_folder_appears_at_the_end(tmp_path: Path) -> None:
    with destination.building(tmp_path / "out") as part:
        (part / "file").touch()
        assert not (tmp_path / "out").exists()
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "file"]


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with destination.building(tmp_path / "out") as part:
            (part / "file").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_failed_audit_leaves_nothing_and_a_passed_one_is_written(tmp_path: Path) -> None:
    def build(problems: list[str]) -> None:
        with destination.building(tmp_path / "out") as part:
            conversion.finish(Audit("import", "huggingFace", {}, problems), part)

    with pytest.raises(AuditError, match="x is missing"):
        build(["x is missing"])
    assert list(tmp_path.iterdir()) == []
    build([])
    assert (tmp_path / "out" / AUDIT_FILE).is_file()


def test_an_existing_folder_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with (
        pytest.raises(DestinationExistsError, match="exists; remove it"),
        destination.building(tmp_path / "out"),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    with (
        pytest.raises(DestinationExistsError, match="exists; remove it"),
        destination.building(tmp_path / "out"),
    ):
        (tmp_path / "out").mkdir()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_missing_parent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="its parent"):
        destination.check(tmp_path / "absent" / "out")
