"""Where the platform has Jobs without accelerators run."""

from typing import Any

import pytest
from megatron_operator.api.platform import CpuJobs
from megatron_operator.manifests import Manifests
from megatron_operator.manifests.cpu_job import placement

TAINT = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
JOBS = CpuJobs.model_validate({"tolerations": [TAINT], "nodeSelector": {"pool": "cpu"}})
KINDS = ("import_job", "prepare_job", "check_job", "export_job", "export_best_job")
RECIPES = (
    "llama3-8b-64-gpus",
    "tiny-gpt",
    "llama3.1-8b-chats",
    "llama3.1-8b-lora-converted",
    "llama3.1-8b-queued",
)


def built(run: Any, recipe: str, jobs: CpuJobs | None, *, best: bool = False) -> Manifests:
    def export_best(spec: dict[str, Any]) -> None:
        spec["export"] = spec["export"] | {"when": ["end", "best"]}
        spec["checkpoint"] = spec.get("checkpoint", {}) | {"saveInterval": 50}

    of = run(recipe, export_best if best else None)
    of.resolved = of.resolved.model_copy(update={"cpu_jobs": jobs})
    manifests: Manifests = of.build()
    return manifests


def jobs_of(manifests: Manifests) -> dict[str, Any]:
    return {kind: job for kind in KINDS if (job := getattr(manifests, kind)) is not None}


def test_every_job_without_accelerators_runs_where_the_platform_has_it(run: Any) -> None:
    found = set[str]()
    for recipe in RECIPES:
        best = recipe.endswith("converted")
        for kind, job in jobs_of(built(run, recipe, JOBS, best=best)).items():
            spec = job["spec"]["template"]["spec"]
            assert (spec["tolerations"], spec["nodeSelector"]) == ([TAINT], {"pool": "cpu"}), kind
            found.add(kind)
    assert found == set(KINDS)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_change_of_it_repeats_nothing_and_changes_no_training_job(run: Any, recipe: str) -> None:
    before, after = built(run, recipe, None), built(run, recipe, JOBS)
    assert (before.job, before.prepare_hash) == (after.job, after.prepare_hash)
    for kind, job in jobs_of(after).items():
        earlier = getattr(before, kind)
        name = "megatron.training/hash"
        assert earlier["metadata"]["annotations"][name] == job["metadata"]["annotations"][name]
        assert placement(earlier) is None
        assert placement(job) is not None


def test_a_job_is_as_before_where_the_platform_sets_nothing(run: Any) -> None:
    assert jobs_of(built(run, "tiny-gpt", CpuJobs())) == jobs_of(built(run, "tiny-gpt", None))
    other = CpuJobs.model_validate({"tolerations": [TAINT]})
    [one], [two] = (jobs_of(built(run, "tiny-gpt", each)).values() for each in (JOBS, other))
    assert placement(one) != placement(two)
    assert "nodeSelector" not in two["spec"]["template"]["spec"]
