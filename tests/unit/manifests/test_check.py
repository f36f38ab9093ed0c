"""The Job that checks data which were prepared elsewhere."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from megatron_contract.bridge_run import PACKED_FOLDER, SAMPLE_SEED, BridgeRun
from megatron_operator.api.platform import CpuJobs
from megatron_operator.manifests import build
from megatron_operator.manifests.cpu_job import placement
from megatron_operator.manifests.data_digest import data_digest, former_digests
from megatron_operator.planner import PlannedRun
from megatron_trainer.data import check_command
from megatron_trainer.data.check import parse_needs

Spec = dict[str, Any]


def container(job: Any) -> Any:
    [found] = job["spec"]["template"]["spec"]["containers"]
    return found


def claims(job: Any) -> dict[str, str]:
    volumes = job["spec"]["template"]["spec"]["volumes"]
    return {v["name"]: v["persistentVolumeClaim"]["claimName"] for v in volumes if v["name"] != "tmp"}


def value(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def on_one_node(spec: Spec) -> None:
    spec["checkpoint"] = {"volume": {"size": "1Ti", "accessMode": "ReadWriteOnce"}}


def test_the_command_of_the_image_takes_the_arguments_for_a_blend(run: Any) -> None:
    built = run("llama3-8b-64-gpus").build()
    words = container(built.check_job)["args"]
    own, flags = words[: words.index("--")], words[words.index("--") + 1 :]
    args = check_command._parse(own)
    needs = parse_needs(flags, args.vocab_size, args.max_epochs)
    assert needs is not None
    prefixes = list(map(str, check_command._prefixes(args.check_blend)))
    assert prefixes == ["/data/web_text_document", "/data/code_text_document"] == list(needs.weights)
    assert (needs.samples, needs.seq_length, needs.max_epochs) == (100_000 * 128, 8192, None)
    assert args.known_dir == Path("/data/prepared/checked")
    assert built.prepare_job is None


def test_the_command_of_the_image_takes_the_arguments_for_a_folder(run: Any) -> None:
    def change(spec: Spec) -> None:
        spec["data"] |= {"examples": "chat", "maxEpochs": 3}

    built = run("llama3.1-70b-lora", change).build()
    args = check_command._parse(container(built.check_job)["args"])
    assert (str(args.check_root), args.lines, args.max_epochs, args.evaluates) == (
        "/data/chats",
        "chat",
        3,
        True,
    )
    assert (args.batch, args.samples) == (8, 3200)
    assert str(args.tokenizer_dir) == "/data/llama-3.1-70b"
    assert claims(built.check_job) == {"data": "corpus"}
    mounts = container(built.check_job)["volumeMounts"]
    assert {each["name"]: each.get("readOnly", False) for each in mounts} == {"data": True, "tmp": False}
    assert container(built.check_job)["image"].endswith("megatron-trainer-bridge:1.0")


@pytest.mark.parametrize("recipe", ["llama3-8b-64-gpus", "llama3.1-70b-lora"])
def test_only_a_limit_of_the_recipe_is_enforced(run: Any, recipe: str) -> None:
    def limit(spec: Spec) -> None:
        spec["data"]["maxEpochs"] = 1

    free, limited = (container(run(recipe, change).build().check_job)["args"] for change in (None, limit))
    assert "--max-epochs" not in free
    assert check_command._parse(free[: free.index("--")] if "--" in free else free).max_epochs is None
    assert value(limited, "--max-epochs") == "1"


@pytest.mark.parametrize("recipe", ["llama3-8b-64-gpus", "llama3.1-70b-lora"])
@pytest.mark.parametrize("check", [True, False])
def test_a_recipe_may_leave_the_check_out(run: Any, recipe: str, check: bool) -> None:
    def change(spec: Spec) -> None:
        spec["data"]["check"] = check

    built = run(recipe, change).build()
    assert (built.check_job is not None, built.prepare_hash is not None) == (check, check)
    assert built.job == run(recipe).build().job


@pytest.mark.parametrize("recipe", ["tiny-gpt", "llama3.1-8b-chats"])
def test_data_that_are_prepared_are_checked_there(run: Any, recipe: str) -> None:
    built = run(recipe).build()
    assert built.check_job is None
    assert built.prepare_job is not None


def test_random_data_are_not_checked(run: Any) -> None:
    def change(spec: Spec) -> None:
        spec["data"] = {"mockData": True}

    built = run("llama3-8b-64-gpus", change).build()
    assert (built.check_job, built.prepare_hash) == (None, None)


@pytest.mark.parametrize(
    ("change", "mounted", "folder"),
    [
        (None, {"data": "corpus", "checkpoints": "llama3-8b-checkpoints"}, None),
        (
            on_one_node,
            {"data": "corpus"},
            "/data/prepared/index/llama3-8b.11111111-2222-3333-4444-555555555555",
        ),
    ],
    ids=["a claim of several nodes", "a new claim of one node"],
)
def test_the_index_is_built_where_it_can_be_kept(
    run: Any, change: Callable[[Spec], None] | None, mounted: dict[str, str], folder: str | None
) -> None:
    def one_node(spec: Spec) -> None:
        spec["accelerator"]["count"] = 8
        if change is not None:
            change(spec)

    job = run("llama3-8b-64-gpus", one_node if change else None).build().check_job
    words = container(job)["args"]
    assert claims(job) == mounted
    assert ("--index" in words, folder and value(words, "--index-dir")) == (folder is None, folder)


@pytest.mark.parametrize("mode", ["ReadWriteMany", "ReadWriteOnce"])
def test_the_samples_of_a_run_that_packs_them_are_packed_by_the_job(run: Any, mode: str) -> None:
    def packing(spec: Spec) -> None:
        spec["data"] |= {"packing": True}
        spec["checkpoint"]["volume"] = {"size": "1Ti", "accessMode": mode}

    built = run("llama3.1-70b-lora", packing).build()
    args = check_command._parse(container(built.check_job)["args"])
    master = built.job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
    of_run = BridgeRun.from_arguments(container({"spec": {"template": master}})["args"]).overrides
    assert str(args.packed_folder) == of_run[PACKED_FOLDER]
    assert (args.seq_length, args.seed) == (of_run["model.seq_length"], of_run[SAMPLE_SEED])
    name = built.job["metadata"]["name"]
    own = f"/data/prepared/index/{name}.11111111-2222-3333-4444-555555555555"
    mounts = container(built.check_job)["volumeMounts"]
    read_only = {each["name"]: each.get("readOnly", False) for each in mounts}
    if mode == "ReadWriteMany":
        assert args.index_dir is None
        assert read_only == {"data": True, "checkpoints": False, "tmp": False}
    else:
        assert str(args.index_dir) == own
        assert read_only == {"data": False, "tmp": False}


def test_the_ends_of_lines_are_written_where_the_run_keeps_its_index(run: Any) -> None:
    def of_several_nodes(spec: Spec) -> None:
        spec["checkpoint"]["volume"] = {"size": "1Ti", "accessMode": "ReadWriteMany"}

    built = run("llama3.1-70b-lora", of_several_nodes).build()
    args = check_command._parse(container(built.check_job)["args"])
    master = built.job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
    of_run = BridgeRun.from_arguments(container({"spec": {"template": master}})["args"]).overrides
    kwargs = of_run["dataset.dataset_kwargs"]
    assert isinstance(kwargs, dict)
    assert str(args.lines_dir) == kwargs["index_mapping_dir"]
    assert set(claims(built.check_job)) == {"data", "checkpoints"}
    alone = container(run("llama3.1-70b-lora").build().check_job)["args"]
    assert "--lines-dir" not in alone, "a new claim of one node is not bound where the Job runs"


def test_an_edit_of_what_is_packed_packs_again(run: Any) -> None:
    def packed(**training: Any) -> str:
        def change(spec: Spec) -> None:
            spec["data"] |= {"packing": True}
            spec["training"] = spec.get("training", {}) | training

        return str(run("llama3.1-70b-lora", change).build().prepare_hash)

    assert len({packed(), packed(seqLength=1024), packed(seed=8)}) == 3
    assert packed(weightDecay=0.05) == packed()


@pytest.mark.parametrize("packing", [False, True])
def test_samples_are_compared_with_the_length_of_the_run(run: Any, packing: bool) -> None:
    def checked(length: int) -> Any:
        def change(spec: Spec) -> None:
            spec["data"] |= {"packing": packing}
            spec["training"] = spec.get("training", {}) | {"seqLength": length}

        return run("llama3.1-70b-lora", change).build()

    short, long = checked(1024), checked(2048)
    assert check_command._parse(container(short.check_job)["args"]).seq_length == 1024
    assert short.prepare_hash != long.prepare_hash
    earlier = copy.deepcopy(short.check_job)
    words = container(earlier)["args"]
    at = words.index("--seq-length")
    del words[at : at + 2]
    accepts = data_digest(earlier) in former_digests(short.check_job)
    assert accepts == (not packing), "an earlier release gave the length to a Job that packs alone"


def test_recipes_of_one_name_in_two_namespaces_have_an_index_each(run: Any) -> None:
    """Their claims may share a file system. A file without a cluster has no UID."""

    def folder(uid: str) -> str:
        of = run("llama3-8b-64-gpus", on_one_node)
        job = build(PlannedRun("run", "research", of.resolved, of.plan), uid).check_job
        return value(container(job)["args"], "--index-dir")

    assert len({folder("first"), folder("second"), folder("")}) == 3
    assert folder("") == "/data/prepared/index/run"


def test_memory_grows_with_the_samples_and_an_index_of_too_many_is_left_to_rank_0(run: Any) -> None:
    def iterations(count: int) -> Callable[[Spec], None]:
        def change(spec: Spec) -> None:
            spec["training"] = {"trainIters": count, "lrWarmupIters": 1, "lrDecayIters": count}

        return change

    few, many, most = (run("llama3-8b-64-gpus", iterations(n)).build() for n in (1000, 500_000, 1_000_000))
    requested = [container(each.check_job)["resources"]["requests"]["memory"] for each in (few, many, most)]
    # 1 GiB each for the check and for the index, and 64 bytes a sample, of 128 an iteration.
    assert requested == ["2056Mi", "5955Mi", "1Gi"]
    assert "--index" in container(many.check_job)["args"]
    assert "--index" not in container(most.check_job)["args"]


@pytest.mark.parametrize(("most", "builds"), [("9Gi", True), ("8Gi", False), ("2Gi", False)])
def test_the_platform_sets_how_much_memory_an_index_may_take(run: Any, most: str, builds: bool) -> None:
    def long(spec: Spec) -> None:
        spec["training"] = {"trainIters": 1_000_000, "lrWarmupIters": 1, "lrDecayIters": 1_000_000}

    of = run("llama3-8b-64-gpus", long)
    jobs = CpuJobs.model_validate({"maxIndexMemory": most})
    of.resolved = of.resolved.model_copy(update={"cpu_jobs": jobs})
    job = of.build().check_job
    assert ("--index" in container(job)["args"]) == builds
    assert "maxIndexMemory" not in job["spec"]["template"]["spec"], "no field of a pod"
    assert placement(job) is None, "where it runs is the same"


@pytest.mark.parametrize(
    ("change", "again"),
    [
        ({"training": {"trainIters": 90_000}}, True),
        ({"data": {"maxEpochs": 2}}, True),
        ({"data": {"blend": [{"path": "web_text_document"}]}}, True),
        ({"training": {"weightDecay": 0.05}}, False),
        ({"image": "registry.example/megatron-trainer:9.9"}, False),
        ({"scheduling": {"queue": "research"}}, False),
        ({"accelerator": {"count": 128}}, False),
        ({"accelerator": {"count": 8}}, False),
    ],
    ids=["length", "epochs", "blend", "weight decay", "image", "queue", "accelerators", "one node"],
)
def test_only_an_edit_that_changes_what_is_checked_checks_again(run: Any, change: Spec, again: bool) -> None:
    def edit(spec: Spec) -> None:
        for section, fields in change.items():
            spec[section] = spec.get(section, {}) | fields if isinstance(fields, dict) else fields

    before = run("llama3-8b-64-gpus").build()
    after = run("llama3-8b-64-gpus", edit).build()
    assert before.prepare_hash is not None
    assert (after.prepare_hash != before.prepare_hash) is again


def test_a_job_with_another_image_replaces_one_that_cannot_start(run: Any) -> None:
    def image(spec: Spec) -> None:
        spec["image"] = "registry.example/megatron-trainer:9.9"

    before, after = (run("llama3-8b-64-gpus", change).build().check_job for change in (None, image))
    assert before["metadata"]["annotations"] != after["metadata"]["annotations"]
    assert json.dumps(container(before)["args"]) == json.dumps(container(after)["args"])


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, {"HF_HUB_OFFLINE": "1"}),
        ({"env": {"HF_HOME": "/data/cache"}}, {"HF_HUB_OFFLINE": "1", "HF_HOME": "/data/cache"}),
        ({"env": {"HF_HUB_OFFLINE": "0"}}, {}),
        ({"env": {"HF_HOME": "/checkpoints/cache"}}, {}),
        ({"env": {"HF_HUB_CACHE": "/data/a"}}, {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": "/data/a"}),
        ({"envFrom": [{"configMapRef": {"name": "hub"}}]}, {}),
        ({"envValueFrom": {"HF_HOME": {"configMapKeyRef": {"name": "hub", "key": "home"}}}}, {}),
        ({"data": {"tokenizer": {"tokenizerModel": "/data/tokenizer"}}}, {}),
    ],
)
def test_a_name_on_a_hub_is_checked_where_the_pod_finds_what_offline_trainers_do(
    run: Any, change: Spec, found: dict[str, str]
) -> None:
    def edit(spec: Spec) -> None:
        spec["data"]["tokenizer"] = {"tokenizerType": "HuggingFaceTokenizer", "tokenizerModel": "org/name"}
        spec |= {name: value for name, value in change.items() if name != "data"}
        spec["data"]["tokenizer"] |= change.get("data", {}).get("tokenizer", {})

    environment = container(run("llama3-8b-64-gpus", edit).build().check_job)["env"]
    of_hub = {each["name"]: each["value"] for each in environment if each["name"].startswith("HF_")}
    assert of_hub == found
