"""Data that were prepared elsewhere are checked by a Job before the training job exists."""

import json
from typing import Any

import yaml

from testkit.fake_nodes import ended, pod_stage
from testkit.waiting import wait_until
from tests.control_plane.test_diagnosis import create_claim, message_of
from tests.control_plane.test_phases import LONGEST_DELAY, running_pod
from tests.control_plane.world import World

BLEND = {
    "volume": {"claimName": "corpus"},
    "tokenizer": {"tokenizerType": "NullTokenizer"},
    "blend": [{"path": "web_text_document"}],
}
MODEL = {"vocabSize": 4096}


def apply(world: World, name: str, **data: Any) -> None:
    create_claim(world, "corpus")
    world.apply(name, data=BLEND | data, model=MODEL)


def labels(name: str) -> dict[str, str]:
    return {"megatron.training/recipe": name, "megatron.training/role": "check"}


def test_a_run_takes_no_accelerator_before_its_data_are_checked(world: World) -> None:
    delay = {"durationMilliseconds": LONGEST_DELAY}
    text = "1 datasets are checked: 7 documents, 90 tokens; warning: no index of the samples"
    status = ended("check", 0, json.dumps({"reason": "Completed", "exitCode": 0, "message": text}))
    with pod_stage(world.api, "run-goes-on", labels("run"), "Running", "phase: Running\n", delay=delay):
        apply(world, "run")
        pod = wait_until("the pod that checks", lambda: running_pod(world, "run-check"))
        progress = {"documents": 0, "bytesDone": 50, "bytesTotal": 200, "step": "check"}
        world.trainers.set_report(world.namespace, pod, phase="preparing", preparation=progress)
        state = world.wait_for(
            "run",
            phase="Checking",
            conditions={"Prepared": "Checking", "Ready": "Checking"},
            status={"preparation": {"bytesDone": 50, "bytesTotal": 200}},
            job=False,
        )
        assert "plan" in state.status
        world.api.patch("Pod", world.namespace, pod, {"status": yaml.safe_load(status)}, "status")
    state = world.train("run", 10)
    prepared = state.conditions["Prepared"]
    assert (prepared["status"], prepared["reason"], prepared["message"]) == ("True", "Checked", text)
    assert "preparation" not in state.status


def test_a_check_that_fails_ends_the_run_and_the_edit_that_it_names_starts_it(world: World) -> None:
    cause = "data.blend[0].path: has token id 4,100, and model.vocabSize is 4,096"
    status = ended("check", 65, json.dumps({"reason": "BadData", "exitCode": 65, "message": cause}))
    with pod_stage(world.api, "check-fails", labels("short"), "Pending", status):
        apply(world, "short")
        message = message_of(world, "short", "Failed", "CheckFailed")
    assert f"{cause} (exit code 65)" in message
    assert not world.job_exists("short")
    world.edit("short", data={"maxEpochs": 2})
    world.wait_for("short", pods=2, conditions={"Prepared": "Checked"})


def test_a_run_whose_data_have_passed_is_not_checked_again(world: World) -> None:
    apply(world, "run")
    world.train("run", 20, checkpoint=10)
    job = world.api.get("Job", world.namespace, "run-check")
    world.edit("run", suspend=True)
    world.wait_for("run", phase="Suspended", pods=0)
    world.edit("run", suspend=False)
    world.train("run", 30, checkpoint=20)
    same = world.api.get("Job", world.namespace, "run-check")
    assert same["metadata"]["uid"] == job["metadata"]["uid"]
