"""The webhook's verdicts: the words of the planner, and what always passes."""

from typing import Any

import pytest
from megatron_operator import catalog
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.controller.config_source import Known
from megatron_operator.controller.webhook import Verdict, judge, response
from megatron_operator.lifecycle.desired import want
from megatron_operator.lifecycle.status_builder import Draft

PLATFORM = PlatformConfig.model_validate(
    {"accelerators": {"h100-sxm": {}}, "image": "trainer", "namespaces": {"small": {"maxAccelerators": 8}}}
)
SPEC: dict[str, Any] = {
    "recipe": "llama3-8b",
    "accelerator": {"type": "h100-sxm", "count": 16},
    "data": {"mockData": True},
}


@pytest.fixture
def known() -> Known:
    return Known(PLATFORM, catalog.load())


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


def test_a_recipe_that_can_be_planned_is_allowed(known: Known) -> None:
    assert judge(request(SPEC), known).errors == ()


def test_a_recipe_that_cannot_be_planned_is_denied_with_every_reason(known: Known) -> None:
    wrong = SPEC | {"accelerator": {"type": "h100-sxm", "count": 12}, "training": {"lrWarmupIters": 10**7}}
    answer = response("u", judge(request(wrong), known))["response"]
    assert answer["allowed"] is False
    assert answer["status"]["message"].splitlines() == [
        "spec.training.lrWarmupIters: a warm-up of 10,000,000 iterations (recipe) does not end before the"
        " decay of 100,000; set lrWarmupIters below 100,000, or lrWarmupFraction (0.01)",
        "spec.accelerator.count: 12 is not a multiple of the 8 accelerators of a node; set 8 or 16, or"
        " perNode to a divisor of 12",
    ]


def test_a_namespaces_limit_holds(known: Known) -> None:
    [error] = judge(request(SPEC, namespace="small"), known).errors
    assert "16 exceeds the limit of 8 for namespace small" in str(error)


def test_a_proposal_is_no_warning(known: Known) -> None:
    assert judge(request(SPEC), known) == Verdict()


def test_what_probably_is_a_mistake_is_warned_of(known: Known) -> None:
    alone = {"numExperts": 8, "moeRouterTopk": 2, "moeAuxLossCoeff": 0}
    verdict = judge(request(SPEC | {"model": alone}), known)
    assert verdict.errors == ()
    assert any("nothing keeps the experts equally busy" in warning for warning in verdict.warnings)
    answer = response("u", verdict)["response"]
    assert answer == {"uid": "u", "allowed": True, "warnings": list(verdict.warnings)}


WRONG = SPEC | {"accelerator": {"type": "h100-sxm", "count": 12}}


def test_a_change_to_a_wrong_recipe_is_denied(known: Known) -> None:
    assert judge(request(WRONG, before=SPEC), known).errors


def test_a_recipe_that_is_wrong_by_now_can_still_be_suspended_and_labelled(known: Known) -> None:
    assert judge(request(WRONG | {"suspend": True}, before=WRONG), known) == Verdict()
    assert judge(request(WRONG, before=WRONG | {"suspend": False}), known) == Verdict()


def test_a_recipe_that_is_being_deleted_can_be_changed(known: Known) -> None:
    leaving = request(WRONG, before=SPEC)
    leaving["object"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert judge(leaving, known) == Verdict()


def test_a_change_that_the_runs_checkpoints_cannot_take_is_denied(known: Known) -> None:
    begun = Draft.of({"metadata": {"name": "mine", "namespace": "default", "uid": "u"}, "spec": SPEC}, 0.0)
    wanted = want(begun, known)
    status = {
        "plan": wanted.plan.wire(),
        "checkpoint": {"iteration": 100, "contract": wanted.contract},
    }
    slower = judge(request(SPEC | {"training": {"lr": 1e-4}}, before=SPEC, status=status), known)
    assert slower.errors == ()
    wider = SPEC | {"model": {"ffnHiddenSize": 16384}}
    [error] = judge(request(wider, before=SPEC, status=status), known).errors
    assert error.field == "spec.model.ffnHiddenSize"
