"""The progress file of a run."""

import json
from pathlib import Path

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
