"""All manifests of each golden recipe: a change of any of them shows as a diff."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from megatron_operator.manifests.job_backends import BACKENDS


class Plain(yaml.SafeDumper):
    """Writes repeated values in full instead of as aliases."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


RECIPES = sorted(path.stem for path in (Path(__file__).parents[2] / "golden" / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("recipe", RECIPES)
def test_manifests_equal_the_golden_files(recipe: str, run: Any, golden: Any) -> None:
    text = yaml.dump_all(run(recipe).build().all(), Dumper=Plain, sort_keys=False, width=110)
    golden.check(f"manifests/{recipe}.yaml", text)


@pytest.mark.parametrize("backend", ["jobset", "trainjob"])
def test_jobs_of_other_kinds_equal_the_golden_files(backend: str, run: Any, golden: Any) -> None:
    each = run("tiny-gpt")
    each.resolved = each.resolved.model_copy(update={"job_backend": backend})
    manifests = each.build()
    objects = BACKENDS[backend].objects(manifests.job)
    assert manifests.all()[-len(objects) :] == objects
    golden.check(f"jobs/{backend}.yaml", yaml.dump_all(objects, Dumper=Plain, sort_keys=False, width=110))
