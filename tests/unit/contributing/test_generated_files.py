"""One list of what is generated, for contributors and for CI; and a layout that names every package."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MAKEFILE = (ROOT / "Makefile").read_text()


def test_make_generated_makes_every_set_of_generated_files() -> None:
    sets = set(re.findall(r"^([\w-]+):[^#\n]*## Regenerate", MAKEFILE, re.M)) - {"generated"}
    listed = re.search(r"^generated: (.*) ##", MAKEFILE, re.M)
    assert listed is not None
    assert set(listed[1].split()) == sets
    assert len(sets) == 6


@pytest.mark.parametrize(
    "path", ["CONTRIBUTING.md", ".github/pull_request_template.md", ".github/workflows/check.yaml"]
)
def test_contributors_and_ci_use_that_list(path: str) -> None:
    assert "make generated" in (ROOT / path).read_text()


def test_the_layout_in_the_readme_names_every_package_of_the_operator() -> None:
    layout = (ROOT / "README.md").read_text().partition("## Repository layout")[2]
    operator = ROOT / "operator" / "megatron_operator"
    packages = {path.parent.name for path in operator.glob("*/__init__.py")}
    assert set(re.findall(r"^        (\w+)/ ", layout, re.M)) == packages
