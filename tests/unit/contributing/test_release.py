"""What a release contains: the bills of materials name every locked package."""

import re
from pathlib import Path

import pytest

from scripts import release

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("image", release.LOCKS)
def test_a_bill_of_materials_names_every_package_that_an_image_installs(image: str) -> None:
    lock = (ROOT / release.LOCKS[image]).read_text()
    pinned = {line.split("==")[0] for line in lock.splitlines() if re.match(r"[A-Za-z0-9].*==", line)}
    bill = release.bill_of_materials(image, "1.2.3", lock, 1_800_000_000)
    names = [each["name"] for each in bill["components"]]
    assert len(set(names)) == len({re.sub(r"\[.*\]", "", each) for each in pinned}) > 10
    assert len({each["bom-ref"] for each in bill["components"]}) == len(names), "references are unique"
    assert bill["metadata"]["timestamp"] == "2027-01-15T08:00:00Z"


def test_a_package_is_named_as_its_index_does() -> None:
    (found,) = release.components("Zope.Interface_x[extra]==1.0 \\\n    --hash=sha256:ab\n")
    assert found["purl"] == "pkg:pypi/zope-interface-x@1.0"


def test_each_wheel_of_the_checkout_is_built() -> None:
    projects = {path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("*/pyproject.toml")}
    assert {*projects, "."} - {"cluster"} == set(release.PROJECTS), "the local cluster is not released"
