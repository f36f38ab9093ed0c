"""`init.from.recipe` between recipes of Megatron-Bridge: weights of pretraining, of SFT, and adapters."""

from typing import Any

import pytest
from megatron_operator import catalog
from megatron_operator.cli.default_platform import default_platform
from megatron_operator.lifecycle.desired import Config, DesiredState, desired_state
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.lifecycle.weights_of_recipe import weights_obstacle

CLAIM, FIRST = "runs", "first-half"
CONFIG = Config(default_platform(), catalog.load())
ADAPTERS = {"dim": 8, "alpha": 16, "targetModules": ["linear_qkv", "linear_proj"]}


def desired(recipe: str, start: dict[str, Any] | None, **sections: Any) -> DesiredState:
    """The run of a recipe whose folder, data and volumes are the same for all."""
    pretrains = not recipe.endswith(("-sft", "-lora"))
    init = {"modelFolder": "/data/model"} | ({"from": start} if start else {})
    spec = {
        "recipe": recipe,
        "accelerator": {"type": "h100-sxm", "count": 8},
        "init": init,
        "data": {"volume": {"claimName": "corpus"}}
        | ({"blend": [{"path": "text"}]} if pretrains else {"datasetRoot": "answers"}),
        "checkpoint": {"volume": {"claimName": CLAIM}},
    }
    metadata = {"name": "run", "namespace": "research", "uid": "1"}
    return desired_state(StatusBuilder.of({"metadata": metadata, "spec": spec | sections}, 0.0), CONFIG)


def succeeded(recipe: str, **sections: Any) -> dict[str, Any]:
    """The recipe FIRST after its end."""
    pretrains = not recipe.endswith(("-sft", "-lora"))
    before = desired(recipe, None if pretrains else {"megatron": {"path": "/data/weights"}}, **sections)
    status = {"phase": "Succeeded", "plan": {"engine": "bridge"}}
    status["checkpoint"] = {"iteration": 100, "contract": before.contract}
    return {
        "metadata": {"name": FIRST},
        "spec": {"recipe": recipe, "checkpoint": {"volume": {"claimName": CLAIM}}},
        "status": status,
    }


def obstacle(run: DesiredState, other: dict[str, Any]) -> str | None:
    found = weights_obstacle(run, FIRST, other)
    return None if found is None else found.message


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("gemma2-2b", "gemma2-2b"),
        ("gemma2-2b", "gemma2-2b-sft"),
        ("gemma2-2b", "gemma2-2b-lora"),
        ("gemma2-2b-sft", "gemma2-2b"),
        ("gemma2-2b-sft", "gemma2-2b-lora"),
        ("gemma2-2b-lora", "gemma2-2b-lora"),
        ("gemma2-2b-lora", "gemma2-2b-sft"),
        ("gemma2-2b-lora", "gemma2-2b"),
    ],
)
def test_a_run_starts_from_one_of_another_kind_in_another_layout(before: str, after: str) -> None:
    parallelism = {"tensorModelParallelSize": 1, "pipelineModelParallelSize": 2}
    run = desired(after, {"recipe": FIRST}, parallelism=parallelism)
    other = succeeded(before, parallelism={"tensorModelParallelSize": 2, "pipelineModelParallelSize": 1})
    assert obstacle(run, other) is None
    words = run.run.arguments
    assert f'checkpoint.pretrained_checkpoint="/checkpoints/{FIRST}"' in words


def test_adapters_of_other_settings_are_named_with_both_values_and_the_way_out() -> None:
    run = desired("llama3.1-8b-lora", {"recipe": FIRST}, peft=ADAPTERS)
    other = succeeded("llama3.1-8b-lora", peft=ADAPTERS | {"dim": 4})
    assert obstacle(run, other) == (
        "spec.init.from.recipe: recipe first-half has trained adapters with spec.peft.dim 4, and this recipe "
        "has 8; set it to the same, or export it and set init.from.huggingFace.path to the folder"
    )


def test_the_dropout_of_adapters_may_differ() -> None:
    run = desired("llama3.1-8b-lora", {"recipe": FIRST}, peft=ADAPTERS)
    assert obstacle(run, succeeded("llama3.1-8b-lora", peft=ADAPTERS | {"dropout": 0.1})) is None


def test_dora_is_not_merged_and_keeps_its_tensor_parallelism_where_it_adapts_gates() -> None:
    tp2, tp1 = ({"tensorModelParallelSize": size, "pipelineModelParallelSize": 1} for size in (2, 1))
    dora = {"type": "dora"}
    other = succeeded("llama3.1-8b-lora", peft=dora, parallelism=tp2)
    message = obstacle(desired("llama3.1-8b-sft", {"recipe": FIRST}), other)
    assert message is not None
    assert "has saved adapters of type dora, which are not merged" in message
    message = obstacle(desired("llama3.1-8b-lora", {"recipe": FIRST}, peft=dora, parallelism=tp1), other)
    assert message is not None
    assert message.endswith(
        "has saved DoRA of linear_fc1 at TP 2, which Megatron-Bridge does not load at 1; set "
        "spec.parallelism.tensorModelParallelSize to 2"
    )
    same = desired("llama3.1-8b-lora", {"recipe": FIRST}, peft=dora, parallelism=tp2)
    assert obstacle(same, other) is None
    of_attention = dora | {"targetModules": ["linear_qkv"]}
    elsewhere = desired("llama3.1-8b-lora", {"recipe": FIRST}, peft=of_attention, parallelism=tp1)
    assert obstacle(elsewhere, succeeded("llama3.1-8b-lora", peft=of_attention, parallelism=tp2)) is None


def test_another_model_is_named() -> None:
    message = obstacle(desired("llama3.1-8b-sft", {"recipe": FIRST}), succeeded("llama3.2-1b-lora"))
    assert message is not None
    assert "has trained a model with spec.model." in message
