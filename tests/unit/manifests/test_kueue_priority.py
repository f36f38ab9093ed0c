"""The label with Kueue's WorkloadPriorityClass, and how it is changed on a job that exists."""

from typing import Any

import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.platform_validation import parse_platform
from megatron_operator.lifecycle.object_metadata import content_hash
from megatron_operator.manifests import kueue
from megatron_operator.manifests.job_backends import BACKENDS

LABEL = "kueue.x-k8s.io/priority-class"


def job(run: Any, backend: str = "pytorchjob", **scheduling: str) -> dict[str, Any]:
    """The training job of a recipe in a queue."""
    each = run("llama3.1-8b-queued", lambda spec: spec["scheduling"].update(scheduling))
    each.resolved = each.resolved.model_copy(update={"job_backend": backend})
    built = each.build().job
    return dict(BACKENDS[backend].objects(built)[-1])


@pytest.mark.parametrize("backend", ["pytorchjob", "jobset", "trainjob"])
def test_the_job_of_a_queued_run_has_the_label_and_another_class_is_no_other_job(
    run: Any, backend: str
) -> None:
    without, high = job(run, backend), job(run, backend, workloadPriorityClassName="high")
    assert LABEL not in without["metadata"]["labels"]
    assert high["metadata"]["labels"] == without["metadata"]["labels"] | {LABEL: "high"}
    assert high["spec"] == without["spec"]
    assert content_hash(high) == content_hash(without)


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        ("tiny-gpt", "prepare_job"),
        ("qwen3-8b-continued", "import_job"),
        ("qwen3-8b-continued", "export_job"),
    ],
)
def test_jobs_beside_a_queued_run_have_its_class_too(run: Any, recipe: str, name: str) -> None:
    scheduling = {"queue": "research", "workloadPriorityClassName": "high"}
    made = getattr(run(recipe, lambda spec: spec.update(scheduling=scheduling)).build(), name)
    assert made["metadata"]["labels"][LABEL] == "high"
    assert content_hash(made) == content_hash(getattr(run(recipe).build(), name))


@pytest.mark.parametrize(
    ("backend", "present", "wanted", "changed"),
    [
        ("pytorchjob", "low", "high", True),
        ("pytorchjob", None, "high", False),
        ("jobset", "low", "high", False),
        ("trainjob", "low", "high", False),
    ],
    ids=["another", "Kueue adds none", "JobSets", "TrainJobs"],
)
def test_only_the_class_of_a_pytorchjob_changes_in_place_and_only_for_another(
    run: Any, backend: str, present: str | None, wanted: str, *, changed: bool
) -> None:
    before, after = (
        job(run, backend, **({"workloadPriorityClassName": name} if name else {}))
        for name in (present, wanted)
    )
    assert not kueue.has_priority_class(before, after)
    expected = {"metadata": {"labels": {LABEL: wanted}}} if changed else None
    assert kueue.priority_patch(before, after) == expected


def test_a_class_that_kueue_or_a_policy_gave_a_job_is_left_where_none_is_named(run: Any) -> None:
    assert kueue.has_priority_class(job(run, workloadPriorityClassName="default"), job(run))


def prepare_job(run: Any, **scheduling: str) -> Any:
    return run("tiny-gpt", lambda spec: spec.update(scheduling=scheduling)).build().prepare_job


def test_labels_of_an_admission_policy_do_not_replace_a_job_that_waits(run: Any) -> None:
    for scheduling in ({}, {"queue": "research"}, {"queue": "a", "workloadPriorityClassName": "low"}):
        wanted = prepare_job(run, **scheduling)
        labels = wanted["metadata"]["labels"] | {LABEL: "of-policy", "kueue.x-k8s.io/queue-name": "default"}
        labelled = wanted | {"metadata": wanted["metadata"] | {"labels": labels}}
        assert not kueue.waits_elsewhere(labelled, wanted)


def test_a_job_waits_elsewhere_once_another_queue_or_class_is_named(run: Any) -> None:
    job = prepare_job(run, queue="a", workloadPriorityClassName="low")
    for scheduling in (
        {"queue": "b", "workloadPriorityClassName": "low"},
        {"queue": "a", "workloadPriorityClassName": "high"},
        {"queue": "a"},
        {},
    ):
        assert kueue.waits_elsewhere(job, prepare_job(run, **scheduling))


def test_a_job_that_an_earlier_release_created_is_judged_by_its_labels(run: Any) -> None:
    job = prepare_job(run, queue="a")
    del job["metadata"]["annotations"]["megatron.training/queued-as"]
    assert not kueue.waits_elsewhere(job, prepare_job(run, queue="a"))
    assert kueue.waits_elsewhere(job, prepare_job(run, queue="b"))
    assert kueue.waits_elsewhere(job, prepare_job(run, queue="a", workloadPriorityClassName="high"))
    assert kueue.waits_elsewhere(job, prepare_job(run))


def test_an_invalid_name_is_refused_in_the_platform_file() -> None:
    with pytest.raises(InvalidRecipeError, match=r"platform\.yaml\.workloadPriorityClassName: invalid name"):
        parse_platform({"queue": "research", "workloadPriorityClassName": "High"}, "platform.yaml")
