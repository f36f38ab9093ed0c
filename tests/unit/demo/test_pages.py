"""The pages show one run of the demo: README's numbers are those of docs/loss.png."""

import re
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[3]


def test_readme_and_picture_name_the_same_kill() -> None:
    readme = (ROOT / "README.md").read_text()
    [shown] = set(re.findall(r"pod killed at iteration\s+│\s+(\d+)", readme))
    with Image.open(ROOT / "docs" / "loss.png") as image:
        assert image.info["Description"] == f"pod killed at iteration {shown}"


def test_readme_and_the_trainers_page_name_the_same_seconds() -> None:
    [shown] = re.findall(r"kill to first new iteration\s+│\s+([\d.]+) s", (ROOT / "README.md").read_text())
    assert f"next new iteration: {shown} s" in (ROOT / "docs" / "trainer.md").read_text()
