"""`megatron cluster check`: the scheduler that starts all pods of a run together."""

from dataclasses import replace
from typing import Any

import pytest
from megatron_operator.cli.gang_checks import GANG_SCHEDULERS

from tests.unit.cli.test_cluster_check import COMPLETE, PYTORCHJOBS, RECIPES, check, named, platform


@pytest.mark.parametrize(("crd", "scheduler"), GANG_SCHEDULERS.items())
def test_each_gang_scheduler_is_known_and_none_is_a_warning(crd: str, scheduler: str) -> None:
    base = [named(PYTORCHJOBS), named(RECIPES)]
    assert check(replace(COMPLETE, crds=[*base, named(crd)]), "gang scheduling").message == scheduler
    assert check(replace(COMPLETE, crds=base), "gang scheduling").state == "warning"


@pytest.mark.parametrize(
    ("fields", "crd"),
    [
        ({"queue": "research"}, "localqueues.kueue.x-k8s.io"),
        ({"gangScheduling": {"scheduler": "volcano"}}, "podgroups.scheduling.volcano.sh"),
        ({"gangScheduling": {"scheduler": "scheduler-plugins"}}, "podgroups.scheduling.x-k8s.io"),
    ],
)
def test_the_gang_scheduler_that_the_platform_names_is_required(fields: dict[str, Any], crd: str) -> None:
    base = [named(PYTORCHJOBS), named(RECIPES)]
    others = [named(each) for each in GANG_SCHEDULERS if each != crd]
    found = check(replace(COMPLETE, crds=[*base, *others]), "gang scheduling", platform(**fields))
    (field,) = fields
    assert (found.state, found.message) == ("missing", f"the platform has {field}, and {crd} is not defined")
    assert found.fix.startswith(f"install {GANG_SCHEDULERS[crd]}, or remove {field} from the platform")
    found = check(replace(COMPLETE, crds=[*base, named(crd)]), "gang scheduling", platform(**fields))
    assert (found.state, found.message) == ("ok", GANG_SCHEDULERS[crd])


def test_gates_of_kubernetes_own_gangs_cannot_be_read_and_the_fix_has_the_command_that_shows_them() -> None:
    found = check(COMPLETE, "gang scheduling", platform(gangScheduling={"scheduler": "kubernetes"}))
    assert found.state == "unknown"
    assert "kubectl api-resources --api-group=scheduling.k8s.io" in found.fix
