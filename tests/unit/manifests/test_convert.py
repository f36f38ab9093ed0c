"""The Jobs that import weights before a run and export them after it."""

from typing import Any

import pytest

RECIPE = "llama3.1-8b-lora-converted"


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


def test_memory_is_requested_for_the_weights_once_and_a_file_of_them(run: Any) -> None:
    built = run(RECIPE)
    container = pod_of(built.build().import_job)["containers"][0]
    bytes_needed = 2 * built.plan.parameters + (4 << 30) + (2 << 30)
    mebibytes = int(container["resources"]["requests"]["memory"].removesuffix("Mi"))
    assert mebibytes - 1 < bytes_needed / (1 << 20) <= mebibytes
    assert "limits" not in container["resources"]


def test_a_refusal_of_the_converter_is_final_and_an_eviction_is_not_counted(run: Any) -> None:
    rules = run(RECIPE).build().export_job["spec"]["podFailurePolicy"]["rules"]
    assert rules[0] == {
        "action": "FailJob",
        "onExitCodes": {"containerName": "convert", "operator": "In", "values": [2]},
    }
    assert rules[1]["action"] == "Ignore"


def test_a_run_from_a_checkpoint_imports_and_exports_nothing(run: Any) -> None:
    built = run("llama3.1-8b-sft").build()
    assert (built.import_job, built.export_job) == (None, None)
