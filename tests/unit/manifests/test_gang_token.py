"""The Secret with the token of a run, and the pods that mount it."""

from base64 import b64decode
from typing import Any

from megatron_operator.api.labels import LABEL_RECIPE
from megatron_operator.manifests import gang_token
from megatron_operator.manifests.metadata import Owner


def secret_volumes(pod: dict[str, Any]) -> list[str]:
    return [volume["secret"]["secretName"] for volume in pod["spec"]["volumes"] if "secret" in volume]


def test_the_training_pods_alone_mount_the_token(run: Any) -> None:
    manifests = run("tiny-gpt").build()
    [name] = secret_volumes(run("tiny-gpt").pod())
    assert name.startswith(f"{run('tiny-gpt').metadata['name']}-gang-")
    assert secret_volumes(manifests.prepare_job["spec"]["template"]) == []


def test_the_trainer_finds_the_token_where_it_is_mounted(run: Any) -> None:
    recipe = run("tiny-gpt")
    [mount] = [each for each in recipe.container()["volumeMounts"] if each["name"] == "gang-token"]
    secret = gang_token.secret(Owner("run", "default", "uid"), "the token")
    [key] = secret["data"]
    assert recipe.env()["MEGATRON_GANG_TOKEN_FILE"] == f"{mount['mountPath']}/{key}"
    assert b64decode(secret["data"][key]) == b"the token"


def test_rendered_objects_refer_to_the_secret_without_its_value(run: Any) -> None:
    assert "Secret" not in {manifest["kind"] for manifest in run("tiny-gpt").build().all()}


def test_the_secret_belongs_to_the_recipe_and_cannot_be_changed() -> None:
    secret = gang_token.secret(Owner("run", "default", "uid"), "the token")
    assert secret["metadata"]["labels"][LABEL_RECIPE] == "run"
    assert secret["metadata"]["ownerReferences"][0]["uid"] == "uid"
    assert (secret["type"], secret["immutable"]) == ("Opaque", True)


def test_recipes_of_one_name_that_follow_each_other_have_secrets_of_their_own() -> None:
    names = {gang_token.secret_name(Owner("run", "default", uid)) for uid in ("first", "second")}
    assert len(names) == 2
