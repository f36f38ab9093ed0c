"""What each golden recipe becomes, whole: a change of any manifest is seen in a diff."""

from pathlib import Path
from typing import Any

import pytest
import yaml


class Plain(yaml.SafeDumper):
    """Writes a value that occurs twice out twice."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


RECIPES = sorted(path.stem for path in (Path(__file__).parents[2] / "golden" / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("recipe", RECIPES)
def test_manifests_are_the_golden_ones(recipe: str, run: Any, golden: Any) -> None:
    text = yaml.dump_all(run(recipe).build().all(), Dumper=Plain, sort_keys=False, width=110)
    golden.check(f"manifests/{recipe}.yaml", text)
