"""The Jobs that import weights before a run and export them after it."""

from typing import Any

import pytest
from megatron_operator import catalog
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.model import ModelSpec
from megatron_operator.catalog import bridge_support
from megatron_operator.manifests import convert

RECIPE = "llama3.1-8b-lora-converted"
OWN_LOOP = "qwen3-8b-continued"


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    return dict(job["spec"]["template"]["spec"])


def test_the_run_starts_from_what_the_import_writes(run: Any) -> None:
    built = run(RECIPE).build()
    (container,) = pod_of(built.import_job)["containers"]
    words = container["args"]
    assert container["command"] == ["megatron-convert"]
    assert words == [
        "import",
        "--from",
        "/data/llama-3.1-8b",
        "--to",
        "/data/llama-3.1-8b-megatron",
        "--reuse",
    ]
    own = built.job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["args"]
    assert 'checkpoint.pretrained_checkpoint="/data/llama-3.1-8b-megatron"' in own
    assert 'hub.path="/data/llama-3.1-8b"' in own
    assert 'tokenizer.tokenizer_model="/data/llama-3.1-8b"' in own


@pytest.mark.parametrize("job", ["import_job", "export_job"])
def test_an_image_that_is_older_than_the_operator_gets_no_argument_for_the_port(run: Any, job: str) -> None:
    (container,) = pod_of(getattr(run(RECIPE).build(), job))["containers"]
    assert "--progress-port" not in container["args"]
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert environment["MEGATRON_PROGRESS_PORT"] == "8432"


def test_a_folder_that_the_recipe_names_stays_that_of_the_architecture(run: Any) -> None:
    built = run(RECIPE, lambda spec: spec["init"].update(modelFolder="/data/other")).build()
    own = built.job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["args"]
    assert 'hub.path="/data/other"' in own
    words = pod_of(built.export_job)["containers"][0]["args"]
    assert words[words.index("--base") + 1] == "/data/llama-3.1-8b", "adapters belong to these weights"


def test_the_export_reads_the_run_and_the_weights_that_its_adapters_belong_to(run: Any) -> None:
    words = pod_of(run(RECIPE).build().export_job)["containers"][0]["args"]
    expected = [
        "export",
        "--from",
        "/checkpoints/answers",
        "--to",
        "/data/out/answers",
        "--reuse",
        "--parents",
    ]
    assert words == [*expected, "--base", "/data/llama-3.1-8b"]


def test_the_best_checkpoint_is_exported_by_a_job_of_its_own_and_kept_by_the_trainer(run: Any) -> None:
    def ask(spec: dict[str, Any]) -> None:
        spec["export"]["when"] = ["best", "end"]
        spec["training"] = {"trainIters": 300, "evalInterval": 100}
        spec["checkpoint"] = {"saveInterval": 100, "keep": 1}

    built = run(RECIPE, ask)
    jobs = built.build()
    end, best = (pod_of(job)["containers"][0]["args"] for job in (jobs.export_job, jobs.export_best_job))
    common = ["export", "--from", "/checkpoints/answers", "--to"]
    last = ["--base", "/data/llama-3.1-8b"]
    assert end == [*common, "/data/out/answers/end", "--reuse", "--parents", *last]
    chosen = ["--iteration", "best", "--link", "/data/out/answers/end"]
    assert best == [*common, "/data/out/answers/best", "--reuse", "--parents", *chosen, *last]
    names = [job["metadata"]["name"] for job in (jobs.export_job, jobs.export_best_job)]
    assert names == ["answers-export", "answers-export-best"]
    assert jobs.all()[-2:] == [jobs.export_job, jobs.export_best_job]
    assert (built.env()["MEGATRON_KEEP_BEST"], built.env()["MEGATRON_KEEP_CHECKPOINTS"]) == ("1", "1")


@pytest.mark.parametrize(
    ("job", "claims"),
    [
        ("import_job", {"data": "models"}),
        ("export_job", {"data": "models", "checkpoints": "answers-checkpoints"}),
    ],
)
def test_the_pods_mount_only_what_they_need_for_writing(run: Any, job: str, claims: dict[str, str]) -> None:
    pod = pod_of(getattr(run(RECIPE).build(), job))
    found = {v["name"]: v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if v["name"] != "tmp"}
    assert found == claims
    assert not any(mount.get("readOnly") for mount in pod["containers"][0]["volumeMounts"])
    assert "nvidia.com/gpu" not in str(pod)


def test_an_export_of_adapters_mounts_the_claim_of_the_weights_that_they_were_trained_on(run: Any) -> None:
    def elsewhere(spec: dict[str, Any]) -> None:
        spec["init"] = {"modelFolder": "/checkpoints/model", "from": {"megatron": {"path": "/data/weights"}}}
        spec["export"]["huggingFace"]["path"] = "/checkpoints/out"

    pod = pod_of(run(RECIPE, elsewhere).build().export_job)
    assert {"data", "checkpoints"} <= {volume["name"] for volume in pod["volumes"]}


def test_memory_is_requested_for_copies_of_the_largest_tensor_and_not_for_the_model(run: Any) -> None:
    built = run(RECIPE)
    container = pod_of(built.build().import_job)["containers"][0]
    gate_and_up, embedding = 2 * 14336 * 4096, 128256 * 4096
    bytes_needed = (3 << 29) + 2 * max(5 * embedding, 12 * gate_and_up)
    assert bytes_needed < 2 * built.plan.parameters / 1.5
    mebibytes = int(container["resources"]["requests"]["memory"].removesuffix("Mi"))
    assert mebibytes - 1 < bytes_needed / (1 << 20) <= mebibytes
    assert "limits" not in container["resources"]


def test_experts_that_a_file_holds_in_one_tensor_are_counted_together() -> None:
    model = ModelSpec(
        hidden_size=2880,
        vocab_size=201088,
        num_experts=128,
        moe_ffn_hidden_size=2880,
        ffn_hidden_size=2880,
    )
    found = convert.memory_needed(model, merges=False, joins_experts=True)
    assert found == convert.LIBRARIES + 2 * convert.COPIES * 2 * 128 * 2880 * 2880
    one_by_one = convert.memory_needed(model, merges=False, joins_experts=False)
    assert one_by_one == convert.LIBRARIES + 2 * convert.COPIES * 201088 * 2880


@pytest.mark.parametrize(
    ("recipe", "joined"),
    [
        ("gemma4-vl-26b-lora", True),
        ("gpt-oss-120b-lora", True),
        ("qwen3-vl-235b-a22b-lora", True),
        ("qwen3.5-vl-397b-a17b-lora", True),
        ("qwen3-30b-a3b-lora", False),
        ("glm4.5-air-lora", False),
    ],
)
def test_whether_files_join_experts_is_known_by_the_models_architecture(recipe: str, joined: bool) -> None:
    (layout, *_) = catalog.load().get(recipe).layouts
    assert layout.function is not None
    assert bridge_support.joins_experts(layout.function) == joined


def test_a_refusal_of_the_converter_is_final_and_an_eviction_is_not_counted(run: Any) -> None:
    rules = run(RECIPE).build().export_job["spec"]["podFailurePolicy"]["rules"]
    assert rules[0] == {
        "action": "FailJob",
        "onExitCodes": {"containerName": "convert", "operator": "In", "values": [2]},
    }
    assert rules[1]["action"] == "Ignore"


def test_a_run_from_a_checkpoint_imports_and_exports_nothing(run: Any) -> None:
    built = run("llama3.1-8b-sft").build()
    assert (built.import_job, built.export_job, built.export_best_job) == (None, None, None)


def words_of(job: dict[str, Any]) -> list[str]:
    return list(pod_of(job)["containers"][0]["args"])


def test_megatrons_own_loop_starts_from_what_the_import_writes(run: Any) -> None:
    built = run(OWN_LOOP).build()
    words = words_of(built.import_job)
    own, model = words[: words.index("--")], words[words.index("--") + 1 :]
    assert own == [
        "import",
        "--from",
        "/data/qwen3-8b",
        "--to",
        "/data/qwen3-8b-megatron",
        "--reuse",
    ]
    assert model[model.index("--rotary-base") + 1] == "1000000"
    arguments = built.job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0][
        "args"
    ]
    assert arguments[arguments.index("--pretrained-checkpoint") + 1] == "/data/qwen3-8b-megatron"


def test_config_json_is_compared_with_the_model_and_not_with_its_layout_or_schedule(run: Any) -> None:
    def imports(change: dict[str, Any]) -> list[str]:
        return words_of(run(OWN_LOOP, lambda spec: spec.update(change)).build().import_job)

    same = imports({})
    assert imports({"parallelism": {"tensorModelParallelSize": 2}}) == same
    assert imports({"training": {"trainIters": 1000, "lr": 1e-3, "minLr": 1e-4}}) == same
    assert imports({"megatronArgs": {"rotary-seq-len-interpolation-factor": 2}}) != same
    padded, vocabulary = "--padded-vocab-size", "--vocab-size"
    assert padded not in same
    assert same[same.index(vocabulary) + 1] == "151936"


def test_an_export_of_the_own_loop_reads_the_given_base_and_compares_it_too(run: Any) -> None:
    export = {"huggingFace": {"path": "/data/out", "base": "/data/base/"}}
    built = run(OWN_LOOP, lambda spec: spec.update(init={}, export=export)).build()
    assert built.import_job is None
    words = words_of(built.export_job)
    assert words[words.index("--base") + 1] == "/data/base"
    assert words[words.index("--") + 1 :] == words_of(run(OWN_LOOP).build().import_job)[7:]


def test_conversions_of_the_own_loop_run_in_the_image_with_bridge(run: Any) -> None:
    own = run(OWN_LOOP)
    built = own.build()
    for job in (built.import_job, built.export_job):
        assert pod_of(job)["containers"][0]["image"] == own.resolved.conversion_image
    trainer = built.job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
    assert trainer["image"] == own.resolved.image != own.resolved.conversion_image


def test_conversions_without_an_image_with_bridge_are_refused_by_their_fields(run: Any) -> None:
    own = run(OWN_LOOP)
    own.resolved = own.resolved.model_copy(update={"conversion_image": None})
    with pytest.raises(InvalidRecipeError) as refused:
        own.build()
    assert [error.field for error in refused.value.errors] == ["spec.init.from.huggingFace", "spec.export"]
    assert "platform.bridgeImage is not set" in str(refused.value)
