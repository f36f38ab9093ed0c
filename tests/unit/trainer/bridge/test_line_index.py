"""The ends of lines that a Job writes are those of the file as it is."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("megatron.training", reason="make setup-trainer")

from megatron_trainer.bridge import line_index
from megatron_trainer.data.line_ends import write_line_ends


@pytest.mark.parametrize(
    ("text", "ends"),
    [("a\nb\n", [1, 3]), ("a\nb", [1, 4]), ("a", [2]), ("a\n\n", [1, 2]), ("\n", [0])],
    ids=["a last newline", "none", "one line", "an empty line", "nothing else"],
)
def test_a_last_line_without_an_end_is_a_line(text: str, ends: list[int], tmp_path: Path) -> None:
    """Its end is one byte behind that of the file, as in `build_index_from_memdata` of Bridge."""
    path = tmp_path / "training.jsonl"
    path.write_text(text)
    write_line_ends(path)
    found = line_index.read_ends(path)
    assert found is not None
    assert found.tolist() == ends


@pytest.mark.parametrize("text", ["a\nbc", "a\nb\n", "a\nb\nc", "ab\n", "abc", "a", ""], ids=repr)
def test_ends_of_another_file_are_not_taken(text: str, tmp_path: Path) -> None:
    path = tmp_path / "training.jsonl"
    path.write_text("a\nb")
    write_line_ends(path)
    path.write_text(text)
    assert line_index.read_ends(path) is None


def test_the_end_of_a_block_is_no_end_of_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_index, "_BLOCK", 2)
    path = tmp_path / "training.jsonl"
    for text, ends in (("ab\ncd\n", [2, 5]), ("ab\ncd", [2, 6]), ("abc", [4])):
        path.write_text(text)
        assert line_index.find_ends(path).tolist() == ends
        assert line_index.find_ends(path).dtype == np.int64
