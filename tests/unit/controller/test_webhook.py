"""The webhook's verdicts: the planner's messages, and what is always allowed."""

import asyncio
from typing import Any

import pytest
from megatron_operator import catalog
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.controller.api_client import ApiError
from megatron_operator.controller.plan_worker import PlanWorker
from megatron_operator.controller.settings import Settings
from megatron_operator.controller.webhook import Webhook, admission_review, review_seconds
from megatron_operator.lifecycle.desired import Config, desired_state
from megatron_operator.lifecycle.review import Verdict, review
from megatron_operator.lifecycle.status_builder import StatusBuilder

PLATFORM = PlatformConfig.model_validate(
    {"accelerators": {"h100-sxm": {}}, "image": "trainer", "namespaces": {"small": {"maxAccelerators": 8}}}
)
SPEC: dict[str, Any] = {
    "recipe": "llama3-8b",
    "accelerator": {"type": "h100-sxm", "count": 16},
    "data": {"mockData": True},
}


@pytest.fixture
def config() -> Config:
    return Config(PLATFORM, catalog.load())


def request(
    spec: dict[str, Any], before: dict[str, Any] | None = None, namespace: str = "default", **more: Any
) -> dict[str, Any]:
    """An AdmissionRequest as the API server sends it."""

    def recipe(spec: dict[str, Any]) -> dict[str, Any]:
        return {"metadata": {"name": "mine", "namespace": namespace}, "spec": spec} | more

    return {
        "uid": "u",
        "operation": "CREATE" if before is None else "UPDATE",
        "namespace": namespace,
        "object": recipe(spec),
        "oldObject": None if before is None else recipe(before),
    }


def test_a_recipe_that_can_be_planned_is_allowed(config: Config) -> None:
    assert review(request(SPEC), config).errors == ()


def test_a_recipe_that_cannot_be_planned_is_denied_with_every_reason(config: Config) -> None:
    wrong = SPEC | {"accelerator": {"type": "h100-sxm", "count": 12}, "training": {"lrWarmupIters": 10**7}}
    answer = admission_review("u", review(request(wrong), config))["response"]
    assert answer["allowed"] is False
    assert answer["status"]["message"].splitlines() == [
        "spec.training.lrWarmupIters: a warm-up of 10,000,000 iterations (recipe) does not end before the"
        " decay of 100,000; set lrWarmupIters below 100,000, or lrWarmupFraction (0.01)",
        "spec.accelerator.count: 12 is not a multiple of the 8 accelerators of a node; set 8 or 16, or"
        " perNode to a divisor of 12",
    ]


def test_a_namespaces_limit_holds(config: Config) -> None:
    [error] = review(request(SPEC, namespace="small"), config).errors
    assert "16 exceeds the limit of 8 for namespace small" in str(error)


def test_a_suggestion_of_the_planner_is_no_warning(config: Config) -> None:
    assert review(request(SPEC | {"checkpoint": {"keep": 5}}), config) == Verdict()


def test_a_probable_mistake_causes_a_warning(config: Config) -> None:
    alone = {"numExperts": 8, "moeRouterTopk": 2, "moeAuxLossCoeff": 0}
    verdict = review(request(SPEC | {"model": alone}), config)
    assert verdict.errors == ()
    assert any("nothing keeps the experts equally busy" in warning for warning in verdict.warnings)
    answer = admission_review("u", verdict)["response"]
    assert answer == {"uid": "u", "allowed": True, "warnings": list(verdict.warnings)}


WRONG = SPEC | {"accelerator": {"type": "h100-sxm", "count": 12}}


def test_a_change_to_an_invalid_recipe_is_denied(config: Config) -> None:
    assert review(request(WRONG, before=SPEC), config).errors


def test_an_invalid_recipe_can_still_be_suspended_and_labelled(config: Config) -> None:
    assert review(request(WRONG | {"suspend": True}, before=WRONG), config) == Verdict()
    assert review(request(WRONG, before=WRONG | {"suspend": False}), config) == Verdict()


def test_a_recipe_that_is_being_deleted_can_be_changed(config: Config) -> None:
    deleting = request(WRONG, before=SPEC)
    deleting["object"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert review(deleting, config) == Verdict()


def test_a_change_that_is_incompatible_with_the_runs_checkpoints_is_denied(config: Config) -> None:
    status = StatusBuilder.of(
        {"metadata": {"name": "mine", "namespace": "default", "uid": "u"}, "spec": SPEC}, 0.0
    )
    desired = desired_state(status, config)
    trained = {
        "plan": desired.plan.wire(),
        "checkpoint": {"iteration": 100, "contract": desired.contract},
    }
    slower = review(request(SPEC | {"training": {"lr": 1e-4}}, before=SPEC, status=trained), config)
    assert slower.errors == ()
    wider = SPEC | {"model": {"ffnHiddenSize": 16384}}
    [error] = review(request(wider, before=SPEC, status=trained), config).errors
    assert error.field == "spec.model.ffnHiddenSize"


@pytest.mark.parametrize(
    ("query", "seconds"),
    [({"timeout": "5s"}, 4.0), ({"timeout": "15s"}, 14.0), ({"timeout": "1s"}, 0.5), ({}, 4.0)],
)
def test_a_review_is_answered_before_the_api_server_stops_waiting(
    query: dict[str, str], seconds: float
) -> None:
    assert review_seconds(query) == seconds


LIMIT = 0.2
"""Seconds for a review."""


class SourceThatFails:
    """Stands in for a ConfigSource whose ConfigMaps cannot be read."""

    async def read(self) -> Config:
        raise ApiError(500, "InternalError", "etcdserver: request timed out")


class SourceThatHangs:
    """Stands in for a ConfigSource whose read is not answered."""

    async def read(self) -> Config:
        await asyncio.sleep(60)
        raise AssertionError("the review did not end before")


Source = type[SourceThatFails] | type[SourceThatHangs]


async def verdict(source: Source, admission: dict[str, Any]) -> Verdict:
    config: Any = source()
    webhook = Webhook(config, PlanWorker(), Settings())
    async with asyncio.timeout(5 * LIMIT):
        return await webhook._verdict(admission, LIMIT)


@pytest.mark.parametrize("source", [SourceThatFails, SourceThatHangs])
async def test_a_run_can_be_suspended_and_labelled_while_the_platform_cannot_be_read(source: Source) -> None:
    assert await verdict(source, request(SPEC | {"suspend": True}, before=SPEC)) == Verdict()
    assert await verdict(source, request(SPEC, before=SPEC)) == Verdict()


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (SourceThatFails, "not planned: 500 InternalError: etcdserver: request timed out"),
        (SourceThatHangs, "not planned in time"),
    ],
)
async def test_a_recipe_is_accepted_with_a_warning_while_the_platform_cannot_be_read(
    source: Source, why: str
) -> None:
    warning = f"{why}; the condition Planned will have the result"
    assert await verdict(source, request(SPEC)) == Verdict(warnings=(warning,))
    assert await verdict(source, request(WRONG, before=SPEC)) == Verdict(warnings=(warning,))
