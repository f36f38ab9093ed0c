"""The progress file of a run."""

import json
from pathlib import Path

import pytest
from megatron_trainer.telemetry.reporter import ProgressFile


def test_lines_that_a_full_volume_rejected_are_appended_later(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    # Writing to this device fails as on a full volume.
    path.symlink_to("/dev/full")
    file = ProgressFile(path)
    file.append({"iteration": 1})
    file.append({"iteration": 2})
    path.unlink()
    file.append({"iteration": 3})
    assert [json.loads(line)["iteration"] for line in path.read_text().splitlines()] == [1, 2, 3]


@pytest.mark.parametrize(
    "torn", ["", "{", '{"iteration": 2, "lmLo'], ids=["nothing", "a byte", "half a line"]
)
@pytest.mark.parametrize("before", ["", '{"iteration": 1}\n'], ids=["first line", "second line"])
def test_a_line_follows_the_part_of_one_that_an_earlier_process_wrote(
    tmp_path: Path, before: str, torn: str
) -> None:
    path = tmp_path / "progress.jsonl"
    path.write_text(before + torn)
    file = ProgressFile(path)
    file.append({"iteration": 2})
    file.append({"iteration": 3})
    found = [json.loads(line)["iteration"] for line in path.read_text().splitlines()]
    assert found == [*([1] if before else []), 2, 3]
