"""Strings of a recipe that reach arguments, environment, names and labels."""

from typing import Any

import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.labels import API_VERSION, KIND
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.validation import parse, parse_recipe, parse_spec

BASE: dict[str, Any] = {"recipe": "llama3-8b", "accelerator": {"count": 8}, "data": {"mockData": True}}


def recipe(path: str, value: object) -> dict[str, Any]:
    """The spec with `value` at `path`, below `data` in place of the mock data."""
    *parents, leaf = path.split(".")
    spec = BASE | ({"data": {"volume": {}, "blend": [{"path": "a"}]}} if path.startswith("data.") else {})
    target = spec
    for parent in parents:
        target[parent] = dict(target.get(parent, {}))
        target = target[parent]
    target[leaf] = value
    if path.startswith("data.prepare"):
        del spec["data"]["blend"]
        target.setdefault("source", "/data/text")
    return spec


REFUSED = [
    ("megatronArgs.log-params", ["a", "--load"], "spec.megatronArgs.log-params[1]", "read it as a flag"),
    ("megatronArgs.wandb-project", "--load=/checkpoints/other", "spec.megatronArgs.wandb-project", "flag"),
    ("megatronArgs.wandb-project", "a\n--load", "spec.megatronArgs.wandb-project", "control character"),
    ("megatronArgs.wandb-project", "a\0b", "spec.megatronArgs.wandb-project", "control character"),
    ("megatronArgs.wandb-project", "\ud800", "spec.megatronArgs.wandb-project", "control character"),
    ("data.tokenizer", {"tokenizerModel": "--finetune"}, "spec.data.tokenizer.tokenizerModel", "flag"),
    ("data.tokenizer", {"tokenizerModel": "/data/../x"}, "spec.data.tokenizer.tokenizerModel", "leaves"),
    ("data.blend", [{"path": "../../etc/x"}], "spec.data.blend[0].path", "leaves its directory"),
    ("data.prepare.include", "../**/*", "spec.data.prepare.include", "leaves its directory"),
    ("data.prepare.source", "--append-eod", "spec.data.prepare.source", "flag"),
    ("data.volume", {"claimName": "Not A Name"}, "spec.data.volume.claimName", "invalid name"),
    ("training.stepBatchSizeSchedule", "-1:1", "spec.training.stepBatchSizeSchedule", "flag"),
    ("scheduling.queue", "a b", "spec.scheduling.queue", "invalid name"),
    (
        "scheduling.workloadPriorityClassName",
        "a" * 64,
        "spec.scheduling.workloadPriorityClassName",
        "invalid name",
    ),
    ("scheduling.topology", ["a b"], "spec.scheduling.topology[0]", "invalid label key"),
    ("scheduling.requiredTopology", "a b", "spec.scheduling.requiredTopology", "invalid label key"),
    ("scheduling.nodeSelector", {"zone": "a\nb"}, "spec.scheduling.nodeSelector.zone", "control character"),
    ("scheduling.nodeSelector", {"zone": "a b"}, "spec.scheduling.nodeSelector.zone", "invalid label value"),
    ("scheduling.nodeSelector", {"a b": "x"}, "spec.scheduling.nodeSelector['a b']", "invalid label key"),
    *(
        (
            "tracking.mlflow",
            {"trackingUri": url, "experiment": "x"},
            "spec.tracking.mlflow.trackingUri",
            "URL",
        )
        for url in ("http://server:port", "http://server:", "http://a:1:2", "http://u:p@server", "http://a?b")
    ),
    ("imagePullSecrets", ["a/b"], "spec.imagePullSecrets[0]", "invalid name"),
    ("image", "repo/image\n  privileged: true", "spec.image", "control character"),
    ("image", "a b", "spec.image", "invalid image"),
    ("env", {"A=B": "x"}, "spec.env['A=B']", "invalid variable name"),
    ("env", {"": "x"}, "spec.env['']", "invalid variable name"),
    ("env", {"A": "x\0y"}, "spec.env.A", "control character"),
    ("env", {"A": "x" * 70_000}, "spec.env.A", "has 70000 characters"),
    ("model.moeLayerFreq", "[1]+" * 5000, "spec.model.moeLayerFreq", "has 20000 characters"),
]


@pytest.mark.parametrize(("path", "value", "field", "message"), REFUSED)
def test_a_string_that_would_change_an_object_is_refused(
    path: str, value: object, field: str, message: str
) -> None:
    with pytest.raises(InvalidRecipeError) as refused:
        parse_spec(recipe(path, value))
    assert [error.field for error in refused.value.errors] == [field]
    assert message in refused.value.errors[0].message
    str(refused.value).encode()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("env", {"NCCL_DEBUG": "INFO", "CERTIFICATE": "line 1\nline 2\t'\"$(HOME)"}),
        (
            "megatronArgs",
            {"seed": -1, "lr-wsd-decay-samples": "-1", "wandb-project": "a 'quoted' \"é\""},
        ),
        ("scheduling", {"topology": ["example.com/rack"], "nodeSelector": {"zone": ""}, "queue": "research"}),
        ("image", "registry.example.com:5000/team/trainer@sha256:0123456789abcdef"),
        ("model.windowSize", "-1,0"),
        ("tracking.mlflow", {"trackingUri": "https://mlflow.example.com/a:b/", "experiment": "x"}),
        ("tracking.mlflow", {"trackingUri": "http://[::1]:5000", "experiment": "x"}),
        ("data.tokenizer", {"tokenizerModel": "org/model"}),
    ],
)
def test_what_kubernetes_and_megatron_accept_is_accepted(path: str, value: object) -> None:
    parse_spec(recipe(path, value))


@pytest.mark.parametrize("name", ["../../other", "a/b", "A", "a b", "-a", "a\n", 3, "x" * 254])
def test_a_recipe_name_that_is_no_object_name_is_refused(name: object) -> None:
    resource = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": BASE}
    with pytest.raises(InvalidRecipeError, match=r"metadata\.name: invalid name"):
        parse_recipe(resource)


def test_the_errors_of_the_spec_are_reported_beside_those_of_the_name() -> None:
    metadata, spec = {"name": "Llama_Bad"}, BASE | {"tp": 8}
    with pytest.raises(InvalidRecipeError) as refused:
        parse_recipe({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec})
    assert [error.field for error in refused.value.errors] == ["metadata.name", "spec.tp"]


def test_a_control_character_of_the_platform_is_refused_with_its_field() -> None:
    platform = {"accelerators": {"a": {"nodeLabels": {"zone": "a\0"}, "env": {"A": "1\n2"}}}}
    with pytest.raises(InvalidRecipeError) as refused:
        parse(PlatformConfig, platform, "platform.yaml")
    assert [error.field for error in refused.value.errors] == ["platform.yaml.accelerators.a.nodeLabels.zone"]


def test_a_hostile_key_is_shortened_and_escaped_in_the_path() -> None:
    with pytest.raises(InvalidRecipeError) as refused:
        parse_spec(BASE | {"x\n" * 200: 1})
    (error,) = refused.value.errors
    assert "\n" not in error.field
    assert len(error.field) < 100


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_number_that_json_cannot_express_is_refused(value: float) -> None:
    with pytest.raises(InvalidRecipeError, match=r"spec\.training\.lr: (inf|nan) is not a finite number"):
        parse_spec(BASE | {"training": {"lr": value}})
    with pytest.raises(InvalidRecipeError, match=r"spec\.megatronArgs\.seed: "):
        parse_spec(BASE | {"megatronArgs": {"seed": value}})
