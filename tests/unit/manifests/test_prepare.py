"""The Job that prepares the data: the index of the run's samples."""

from typing import Any

import pytest
from megatron_contract.bridge_run import PACKED_FOLDER, SAMPLE_SEED, BridgeRun
from megatron_contract.environment import ENV_RUN_ID
from megatron_operator.manifests import build
from megatron_operator.planner import PlannedRun
from megatron_trainer.data import chats_command, prepare_options

Spec = dict[str, Any]


def index_arguments(job: dict[str, Any]) -> list[str]:
    words: list[str] = job["spec"]["template"]["spec"]["containers"][0]["args"]
    return words[words.index("--") + 1 :] if "--" in words else []


def value(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def test_the_job_gets_the_runs_own_arguments_of_its_data_and_the_volume_of_the_index(run: Any) -> None:
    built = run("tiny-gpt").build()
    own = built.job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["args"]
    words = index_arguments(built.prepare_job)
    for flag in ("--seq-length", "--train-iters", "--global-batch-size", "--data-path", "--data-cache-path"):
        assert value(words, flag) == value(own, flag)
    assert "--num-layers" not in words
    pod = built.prepare_job["spec"]["template"]["spec"]
    claims = {
        v["name"]: v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if v["name"] != "tmp"
    }
    assert claims == {"data": "tiny-gpt-data", "checkpoints": "tiny-gpt-checkpoints"}
    assert value(words, "--data-cache-path").startswith("/checkpoints/")
    assert {"name": "checkpoints", "mountPath": "/checkpoints"} in pod["containers"][0]["volumeMounts"]


def test_the_job_of_a_folder_gets_the_vocabulary_of_the_model(run: Any) -> None:
    """By which it refuses a tokenizer that another recipe has left on the volume."""
    of = run("tiny-gpt")
    [container] = of.build().prepare_job["spec"]["template"]["spec"]["containers"]
    own = container["args"][: container["args"].index("--")]
    assert value(own, "--vocab-size") == str(of.resolved.model.vocab_size)
    assert prepare_options.parse_options(container["args"]).vocab_size == of.resolved.model.vocab_size


def test_pods_that_prepare_have_the_uid_of_their_recipe_where_there_is_one(run: Any) -> None:
    """By which their claims differ from those of another recipe with the same sources."""

    def found(uid: str) -> list[str]:
        of = run("tiny-gpt")
        job = build(PlannedRun("run", "research", of.resolved, of.plan), uid).prepare_job
        assert job is not None
        [container] = job["spec"]["template"]["spec"]["containers"]
        return [each["value"] for each in container["env"] if each["name"] == ENV_RUN_ID]

    assert (found("a-uid"), found("")) == (["a-uid"], [])


@pytest.mark.parametrize(
    ("change", "again"),
    [
        ({"trainIters": 300}, True),
        ({"seed": 7}, True),
        ({"weightDecay": 0.05}, False),
    ],
    ids=["length", "seed", "weight decay"],
)
def test_only_an_edit_that_changes_the_samples_prepares_again(run: Any, change: Spec, again: bool) -> None:
    before = run("tiny-gpt").build().prepare_hash
    after = run("tiny-gpt", lambda spec: spec.update(training=change)).build().prepare_hash
    assert (after != before) is again


@pytest.mark.parametrize("name", ["tiny-gpt", "llama3.1-8b-chats"])
def test_another_image_or_other_requests_prepare_nothing_again(run: Any, name: str) -> None:
    def edit(spec: Spec) -> None:
        spec["image"] = "registry.example/megatron-trainer:9.9"
        data = spec["data"]
        data["prepare"] = data.get("prepare", {}) | {"resources": {"memory": "3Gi"}}
        spec["env"] = {"DEBUG": "1"}

    before, after = run(name).build(), run(name, edit).build()
    assert before.prepare_job["spec"] != after.prepare_job["spec"]
    assert before.prepare_hash == after.prepare_hash


def test_a_new_volume_of_one_node_is_not_bound_where_the_job_runs(run: Any) -> None:
    """So the index is built on the data volume."""

    def existing_data(spec: Spec) -> None:
        spec["data"]["volume"] = {"claimName": "corpus"}
        spec["checkpoint"]["volume"] = {"size": "1Gi", "accessMode": "ReadWriteOnce"}

    job = run("tiny-gpt", existing_data).build().prepare_job
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert value(container["args"], "--index-dir") == (
        "/data/prepared/index/tiny-gpt.11111111-2222-3333-4444-555555555555"
    )
    assert value(index_arguments(job), "--data-cache-path") == "/checkpoints/tiny-gpt/data-cache"
    assert [v["name"] for v in job["spec"]["template"]["spec"]["volumes"]] == ["data", "tmp"]


@pytest.mark.parametrize("packing", [True, False])
def test_the_job_packs_chats_with_the_settings_of_the_run(run: Any, packing: bool) -> None:
    def change(spec: Spec) -> None:
        spec["data"]["packing"] = packing
        spec["checkpoint"] = {"volume": {"size": "1Ti", "accessMode": "ReadWriteMany"}}

    built = run("llama3.1-8b-chats", change).build()
    [of_run] = built.job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
    overrides = BridgeRun.from_arguments(of_run["args"]).overrides
    [container] = built.prepare_job["spec"]["template"]["spec"]["containers"]
    args = chats_command._parse(container["args"])
    mounted = {each["name"] for each in container["volumeMounts"]}
    if packing:
        assert (str(args.packed_folder), args.seed, args.index_dir) == (
            overrides[PACKED_FOLDER],
            overrides[SAMPLE_SEED],
            None,
        )
    assert (args.packed_folder is not None) == packing == (PACKED_FOLDER in overrides)
    assert ("checkpoints" in mounted) == packing
    assert container["resources"]["requests"]["memory"] == ("2Gi" if packing else "1536Mi")
