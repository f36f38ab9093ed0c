"""All manifests of each golden recipe: a change of any of them shows as a diff."""

from pathlib import Path
from typing import Any

import pytest
import yaml


class Plain(yaml.SafeDumper):
    """Writes repeated values in full instead of as aliases."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


RECIPES = sorted(path.stem for path in (Path(__file__).parents[2] / "golden" / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("recipe", RECIPES)
def test_manifests_equal_the_golden_files(recipe: str, run: Any, golden: Any) -> None:
    text = yaml.dump_all(run(recipe).build().all(), Dumper=Plain, sort_keys=False, width=110)
    golden.check(f"manifests/{recipe}.yaml", text)
