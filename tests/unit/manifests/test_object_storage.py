"""The Job that reads an object store, and what its trainer's pods must not have."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from megatron_operator.api.errors import InvalidRecipeError
from megatron_trainer.data import chats_command, sources_command

Spec = dict[str, Any]
STORAGE = {"secretName": "reader", "endpointUrl": "http://minio:9000", "region": "eu-west-1"}


def job_container(built: Any) -> dict[str, Any]:
    [container] = built.prepare_job["spec"]["template"]["spec"]["containers"]
    return dict(container)


def test_the_credentials_are_in_the_preparing_pods_alone(run: Any) -> None:
    built = run("object-storage").build()
    container = job_container(built)
    secrets = {
        each["name"]: each["valueFrom"]["secretKeyRef"] for each in container["env"] if "valueFrom" in each
    }
    assert secrets == {
        "AWS_ACCESS_KEY_ID": {"name": "corpus-reader", "key": "AWS_ACCESS_KEY_ID"},
        "AWS_SECRET_ACCESS_KEY": {"name": "corpus-reader", "key": "AWS_SECRET_ACCESS_KEY"},
        "AWS_SESSION_TOKEN": {"name": "corpus-reader", "key": "AWS_SESSION_TOKEN", "optional": True},
    }
    plain = {each["name"]: each.get("value") for each in container["env"]}
    assert plain["MEGATRON_SECRET_VARIABLES"] == " ".join(secrets)
    assert container["terminationMessagePolicy"] == "File"
    others = [each for each in built.all() if each is not built.prepare_job]
    assert len(others) > 1
    assert "corpus-reader" not in yaml.safe_dump_all(others)
    assert "AWS_" not in yaml.safe_dump_all(others)


def test_the_pods_get_the_store_as_megatron_prepare_reads_it(run: Any) -> None:
    words = job_container(run("object-storage").build())["args"]
    args = sources_command._parse(words[: words.index("--")] if "--" in words else words)
    assert (args.endpoint_url, args.region) == ("http://minio.storage:9000", "eu-central-1")


def test_chats_to_fine_tune_on_are_read_from_objects(run: Any) -> None:
    def change(spec: Spec) -> None:
        spec["data"]["sources"] = [{"path": "s3://corpus/*.jsonl"}]
        spec["data"]["prepare"] = {"objectStorage": STORAGE}

    built = run("llama3.1-8b-chats", change).build()
    container = job_container(built)
    args = chats_command._parse(container["args"])
    assert (args.endpoint_url, args.region) == ("http://minio:9000", "eu-west-1")
    assert [
        each["valueFrom"]["secretKeyRef"]["name"] for each in container["env"] if "valueFrom" in each
    ] == ["reader"] * 3


def test_without_a_secret_the_pods_have_the_role_of_their_service_account(run: Any) -> None:
    def change(spec: Spec) -> None:
        del spec["data"]["prepare"]["objectStorage"]

    container = job_container(run("object-storage", change).build())
    assert [each["name"] for each in container["env"]] == ["HOME", "MEGATRON_RUN_ID"]
    assert "--endpoint-url" not in container["args"]


def test_the_same_path_of_another_store_is_another_dataset(run: Any) -> None:
    def change(spec: Spec) -> None:
        spec["data"]["prepare"]["objectStorage"]["endpointUrl"] = "http://other:9000"

    def datasets(built: Any) -> list[str]:
        own = built.job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["args"]
        at = own.index("--data-path")
        return [Path(word).name for word in own[at + 2 : at + 5 : 2]]

    first, second = datasets(run("object-storage").build()), datasets(run("object-storage", change).build())
    assert first[0] != second[0]
    assert first[1] == second[1]


def chats_of_objects(spec: Spec) -> None:
    """Chats in an object store, to fine-tune a model of a hub on, and a new volume for both."""
    spec["data"] = {"volume": {"size": "1Ti"}, "sources": [{"path": "s3://corpus/*.jsonl", "format": "chat"}]}
    spec["training"] |= {"evalIters": 1}


def test_objects_fill_a_new_volume_also_without_settings_of_the_preparation(run: Any) -> None:
    built = run("llama3.1-8b-from-a-hub", chats_of_objects).build()
    assert "s3://corpus/*.jsonl" in job_container(built)["args"][1]
    assert "from-a-hub-data" in [claim["metadata"]["name"] for claim in built.claims]


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"sources": [{"path": "/data/*.jsonl", "format": "chat"}]}, r"data\.sources\[0\]\.path"),
        (
            {"tokenizer": {"tokenizerModel": "/data/own"}},
            r"data\.tokenizer\.tokenizerModel '/data/own' is read",
        ),
    ],
)
def test_what_nothing_writes_is_not_read_from_a_new_volume(run: Any, data: Spec, field: str) -> None:
    def change(spec: Spec) -> None:
        chats_of_objects(spec)
        spec["data"] |= data

    with pytest.raises(InvalidRecipeError, match=rf"requests a new, empty volume, from which {field}"):
        run("llama3.1-8b-from-a-hub", change).build()
