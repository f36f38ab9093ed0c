"""The progress file: a line for every iteration, also after the volume was full."""

import json
from pathlib import Path

from megatron_trainer.telemetry.reporter import ProgressFile


def test_lines_that_a_full_volume_refused_are_added_with_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    # Writing to this device fails as writing to a full volume does.
    path.symlink_to("/dev/full")
    file = ProgressFile(path)
    file.append({"iteration": 1})
    file.append({"iteration": 2})
    path.unlink()
    file.append({"iteration": 3})
    assert [json.loads(line)["iteration"] for line in path.read_text().splitlines()] == [1, 2, 3]
