"""The import Job downloads a model of a hub, and only its pod has the token."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml
from megatron_operator.api.errors import InvalidRecipeError

RECIPE = "llama3.1-8b-from-a-hub"
FOLDER = "/data/hub/meta-llama/Llama-3.1-8B/v1.0"
Change = Callable[[dict[str, Any]], None]


def container_of(job: dict[str, Any]) -> dict[str, Any]:
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return dict(container)


def environment_of(job: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container_of(job)["env"]}


def test_the_import_downloads_to_the_folder_that_it_converts(run: Any) -> None:
    container = container_of(run(RECIPE).build().import_job)
    assert container["args"] == [
        *("import", "--from", FOLDER, "--to", f"{FOLDER}-megatron", "--reuse"),
        *("--hub", "meta-llama/Llama-3.1-8B", "--revision", "v1.0"),
    ]
    environment = environment_of(run(RECIPE).build().import_job)
    assert environment["HF_ENDPOINT"] == "https://mirror.example/hf"
    assert "HF_HUB_OFFLINE" not in environment


def test_the_branch_main_needs_no_argument(run: Any) -> None:
    def forget(spec: dict[str, Any]) -> None:
        spec["init"]["from"]["huggingFace"].pop("revision")

    words = container_of(run(RECIPE, forget).build().import_job)["args"]
    assert "--revision" not in words
    assert "/data/hub/meta-llama/Llama-3.1-8B/main" in words


def test_only_the_import_has_the_token_and_never_as_an_argument(run: Any) -> None:
    built = run(RECIPE).build()
    assert environment_of(built.import_job)["HF_TOKEN"] == {
        "secretKeyRef": {"name": "my-hub", "key": "HF_TOKEN", "optional": False}
    }
    assert environment_of(built.import_job)["MEGATRON_SECRET_VARIABLES"] == "HF_TOKEN"
    others = [each for each in built.all() if each != built.import_job]
    assert len(others) == len(built.all()) - 1
    assert "my-hub" not in yaml.safe_dump_all(others)
    assert "HF_TOKEN" not in yaml.safe_dump_all(others)
    assert "mirror.example" not in yaml.safe_dump_all(others)
    assert container_of(built.import_job)["terminationMessagePolicy"] == "File"


def test_a_recipe_without_a_token_has_that_of_the_platform(run: Any) -> None:
    def forget(spec: dict[str, Any]) -> None:
        spec["init"]["from"]["huggingFace"].pop("secretKeyRef")

    token = environment_of(run(RECIPE, forget).build().import_job)["HF_TOKEN"]
    assert token == {"secretKeyRef": {"name": "hub", "key": "token", "optional": True}}


def test_the_training_and_the_export_read_what_was_downloaded(run: Any) -> None:
    built = run(RECIPE).build()
    words = built.job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["args"]
    assert f'hub.path="{FOLDER}"' in words
    assert f'tokenizer.tokenizer_model="{FOLDER}"' in words
    assert f'checkpoint.pretrained_checkpoint="{FOLDER}-megatron"' in words
    exported = container_of(built.export_job)
    assert exported["args"][exported["args"].index("--base") + 1] == FOLDER
    assert environment_of(built.export_job)["HF_HUB_OFFLINE"] == "1"


def test_the_import_of_a_folder_asks_no_hub_and_gets_no_token(run: Any) -> None:
    def take_folder(spec: dict[str, Any]) -> None:
        spec["init"]["from"]["huggingFace"] = {"path": "/data/llama"}

    environment = environment_of(run(RECIPE, take_folder).build().import_job)
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert not {"HF_TOKEN", "HF_ENDPOINT", "MEGATRON_SECRET_VARIABLES"} & environment.keys()


def test_a_new_volume_of_data_can_take_a_model_of_a_hub_and_no_folder(run: Any) -> None:
    def chats_on_a_new_volume(source: dict[str, str]) -> Change:
        def change(spec: dict[str, Any]) -> None:
            spec["init"]["from"]["huggingFace"] = source
            sources = [{"path": "s3://corpus/*.jsonl", "format": "chat"}]
            spec["data"] = {"volume": {"size": "1Ti"}, "sources": sources}
            spec["data"]["prepare"] = {"objectStorage": {"secretName": "store"}}

        return change

    built = run(RECIPE, chats_on_a_new_volume({"name": "meta-llama/Llama-3.1-8B"})).build()
    assert "from-a-hub-data" in [claim["metadata"]["name"] for claim in built.claims]
    with pytest.raises(
        InvalidRecipeError, match=r"from which init.from.huggingFace.path '/data/llama' is read"
    ):
        run(RECIPE, chats_on_a_new_volume({"path": "/data/llama"})).build()
