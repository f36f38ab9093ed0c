"""docs/weights.md has a row per family, as `make weights-table` measured them."""

from pathlib import Path

from megatron_trainer.weights.cpu_model import CONVERTS

from testkit.image_models import FAMILIES as IMAGE_FAMILIES
from testkit.nemotron import FAMILIES as NEMOTRON_FAMILIES
from testkit.omni_text import FAMILIES as OMNI_FAMILIES
from testkit.sound_models import FAMILIES as SOUND_FAMILIES
from testkit.weights.families import FAMILIES

PAGE = Path(__file__).parents[4] / "docs" / "weights.md"


def _rows() -> dict[str, str]:
    cells = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return {row[0].removeprefix("| "): " | ".join(row) for row in cells}


def test_every_family_has_a_row_with_its_architecture() -> None:
    rows = _rows()
    for family in FAMILIES:
        assert f"`{family.architecture}`" in rows[family.name]


def test_the_families_that_convert_are_those_of_the_command() -> None:
    rows = _rows()
    converted = {family.architecture for family in FAMILIES if "| bit for bit |" in rows[family.name]}
    # Their logits need media: test_image_text.py, test_sound_text.py and others of tests/trainer.
    of_media = IMAGE_FAMILIES | SOUND_FAMILIES | OMNI_FAMILIES | NEMOTRON_FAMILIES
    read_media = {family.architecture for family in of_media.values()}
    assert converted | read_media == set(CONVERTS)
    assert [name for name in read_media if f"`{name}`" not in PAGE.read_text()] == []
