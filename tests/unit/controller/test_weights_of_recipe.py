"""`init.from.recipe`: a run starts from another recipe's weights once these can be loaded."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from megatron_operator.lifecycle.weights_of_recipe import _engine

from tests.unit.controller.simulated_run import CLAIM, Run

FIRST = "first-half"
HUGGING_FACE = {"huggingFace": {"path": "/data/model"}}


@pytest.fixture
def run() -> Iterator[Run]:
    """A run that is to start from the weights of the recipe FIRST, which does not exist yet."""
    run = Run()
    run.edit(init={"from": {"recipe": FIRST}})
    yield run
    run.operator.close()


@pytest.fixture(scope="module")
def contract() -> dict[str, str]:
    """The settings that the checkpoints of the simulated run fix."""
    run = Run()
    run.until(lambda: (run.status.get("checkpoint") or {}).get("contract") is not None)
    run.operator.close()
    return dict(run.status["checkpoint"]["contract"])


def succeeded(contract: dict[str, str], **spec: Any) -> dict[str, Any]:
    """The recipe FIRST after its end."""
    return {
        "metadata": {"name": FIRST},
        "spec": {"checkpoint": {"volume": {"claimName": CLAIM}}, **spec},
        "status": {"phase": "Succeeded", "checkpoint": {"iteration": 100, "contract": contract}},
    }


def why_it_waits(run: Run) -> str:
    for _ in range(3):
        run.cluster.pass_time(5)
        run.operator.reconcile()
    condition = run.condition("Running")
    assert condition["reason"] == "WeightsNotReady"
    assert run.cluster.job is None
    return str(condition["message"])


def test_the_run_starts_once_the_other_recipe_has_succeeded(run: Run, contract: dict[str, str]) -> None:
    message = "spec.init.from.recipe: recipe first-half does not exist in namespace default; "
    assert why_it_waits(run) == f"{message}create it, or name another"
    other = succeeded(contract)
    run.api.other_recipes[FIRST] = other | {"status": {"phase": "Training"}}
    assert "first-half is Training; the run waits until it is Succeeded" in why_it_waits(run)
    run.api.other_recipes[FIRST] = other
    run.until(run.trains)
    job: Any = run.api.job()
    words = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["args"]
    assert words[words.index("--pretrained-checkpoint") + 1] == f"/checkpoints/{FIRST}"


def test_weights_that_megatron_fsdp_has_saved_are_not_loaded(run: Run, contract: dict[str, str]) -> None:
    run.api.other_recipes[FIRST] = succeeded(contract | {"parallelism.useMegatronFsdp": "true"})
    assert "has saved with spec.parallelism.useMegatronFsdp" in why_it_waits(run)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"spec": {"checkpoint": {}}},
            "keeps its checkpoints on claim first-half-checkpoints; set spec.checkpoint",
        ),
        (
            {"status": {"plan": {"engine": "bridge"}}},
            "is run by engine bridge, whose checkpoints engine megatron",
        ),
        ({"spec": {"init": {"modelFolder": "/data/model"}}}, "is run by engine bridge"),
        ({"spec": {"init": {"from": HUGGING_FACE}}}, "is run by engine bridge"),
        ({"spec": {"recipe": "gemma3-1b"}}, "is run by engine bridge"),
        ({"status": {"checkpoint": {}}}, "reports no checkpoint"),
        ({"contract": {"model.hiddenSize": "96"}}, "spec.model.hiddenSize 96, and this recipe has"),
    ],
)
def test_weights_that_cannot_be_loaded_are_named(
    run: Run, contract: dict[str, str], change: dict[str, Any], message: str
) -> None:
    other = deepcopy(succeeded(contract))
    for section in ("spec", "status"):
        other[section] |= change.get(section, {})
    other["status"]["checkpoint"].get("contract", {}).update(change.get("contract", {}))
    run.api.other_recipes[FIRST] = other
    assert message in why_it_waits(run)


def test_the_engine_is_that_of_the_plan_and_not_guessed(run: Run, contract: dict[str, str]) -> None:
    other = succeeded(contract, init={"modelFolder": "/data/model"})
    other["status"]["plan"] = {"engine": "megatron"}
    run.api.other_recipes[FIRST] = other
    run.until(run.trains)
    assert run.status["plan"]["engine"] == "megatron"


def test_the_engine_of_a_run_that_was_planned_by_an_older_version_is_that_of_its_entry(
    run: Run, contract: dict[str, str]
) -> None:
    run.api.other_recipes[FIRST] = succeeded(contract, recipe="qwen3-8b", init={"modelFolder": "/data/model"})
    run.until(run.trains)


@pytest.mark.parametrize(("spec", "engine"), [({}, "megatron"), ({"init": {"modelFolder": "/m"}}, "bridge")])
def test_the_engine_of_an_entry_that_the_operator_does_not_ship_is_derived(
    spec: dict[str, Any], engine: str
) -> None:
    assert _engine({"recipe": "our-own", **spec}, {}) == engine


def test_another_layout_is_no_obstacle(run: Run, contract: dict[str, str]) -> None:
    other = contract | {
        "parallelism.tensorModelParallelSize": "8",
        "parallelism.pipelineModelParallelSize": "4",
    }
    run.api.other_recipes[FIRST] = succeeded(other)
    run.until(run.trains)


def test_a_run_with_its_own_checkpoint_goes_on_without_the_other_recipe(run: Run) -> None:
    run.api.recipe["status"] = {"checkpoint": {"iteration": 100}}
    run.until(run.trains)


def test_a_recipe_of_the_own_loop_with_imported_weights_is_no_obstacle(
    run: Run, contract: dict[str, str]
) -> None:
    other = succeeded(contract, init={"from": HUGGING_FACE})
    other["status"]["imported"] = {"source": "/data/model", "model": "0123"}
    run.api.other_recipes[FIRST] = other
    run.until(run.trains)
