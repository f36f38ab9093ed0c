"""From Hugging Face weights to fine-tuned ones on the local cluster, a pod killed on the way."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from localcluster import Cluster
from localcluster.images import BRIDGE_TRAINER

from testkit.installation import DATA_CLAIM, connect, installed_namespace
from testkit.kubectl import Kubectl
from testkit.training_run import TrainingRun
from testkit.waiting import LONG_DEADLINE
from tests.fine_tuning.pods import output_of, scripts

RECIPE = Path(__file__).with_name("lora.yaml")
SAVE_INTERVAL = 10


@pytest.fixture(scope="module")
def kubectl() -> Iterator[Kubectl]:
    """A namespace with a model, questions and answers."""
    if os.geteuid() != 0:
        pytest.skip("needs root: the local cluster")
    kubeconfig = connect()
    Cluster().images([BRIDGE_TRAINER.name])
    with installed_namespace(Kubectl(kubeconfig, "fine-tuning")) as kubectl:
        kubectl.apply({**DATA_CLAIM, "metadata": {"name": "weights"}})
        kubectl.apply(scripts())
        output_of(kubectl, "make-model", "python", "/scripts/model_and_answers.py", "/data")
        yield kubectl


def finished(run: TrainingRun) -> dict[int, set[float]]:
    """Losses by iteration of a run that succeeds; of iterations that were repeated, all."""
    status = run.wait(lambda status: status.phase in ("Succeeded", "Failed"), LONG_DEADLINE)
    assert status.phase == "Succeeded", status.message
    losses: dict[int, set[float]] = {}
    for record in run.history():
        losses.setdefault(record.iteration, set()).add(record.loss)
    return losses


def conversions(kubectl: Kubectl, run: TrainingRun) -> dict[str, str]:
    """What the run's status has of the weights that were imported and exported, all of them audited."""
    status = (kubectl.get("megatronrecipe", run.name) or {})["status"]
    found = {name: status[name] for name in ("imported", "exported")}
    assert all(each["tensors"] > 0 for each in found.values()), found
    return {
        name: f"{each['source']} -> {each['path']}, {each['tensors']} tensors" for name, each in found.items()
    }


def test_a_lora_run_whose_pod_is_killed_gives_the_weights_of_an_undisturbed_one(kubectl: Kubectl) -> None:
    undisturbed = TrainingRun(kubectl, RECIPE, "undisturbed")
    undisturbed.manifest["spec"]["export"]["huggingFace"]["path"] = "/data/out/undisturbed"
    undisturbed.apply()
    expected = finished(undisturbed)
    print(conversions(kubectl, undisturbed))
    undisturbed.delete()

    run = TrainingRun(kubectl, RECIPE)
    run.apply()
    run.wait(lambda status: (status.checkpoint or 0) >= SAVE_INTERVAL, LONG_DEADLINE)
    run.kill_pod(f"{run.name}-worker-0")
    assert finished(run) == expected
    assert sorted(expected) == list(range(1, run.train_iters + 1))
    assert run.status().restarts == 1
    print(conversions(kubectl, run))

    folders = ["/data/model", "/data/out/undisturbed", f"/data/out/{run.name}"]
    losses = output_of(
        kubectl, "losses", "python", "/scripts/merged_losses.py", "/data/answers/validation.jsonl", *folders
    )
    before, without_fault, with_fault = json.loads(losses.splitlines()[-1]).values()
    print(f"loss of held-back answers: {before:.3f} before, {with_fault:.3f} after")
    assert with_fault == without_fault
    assert with_fault < before
