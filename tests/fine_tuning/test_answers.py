"""From Hugging Face weights to fine-tuned ones on the local cluster, with a fault on the way."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from testkit.kubectl import Kubectl
from testkit.training_run import TrainingRun
from testkit.waiting import LONG_DEADLINE
from tests.fine_tuning.cluster import finished, interruptions, kill_a_rank
from tests.fine_tuning.pods import output_of

RECIPE = Path(__file__).with_name("answers.yaml")
SAVE_INTERVAL = 10


def of_mode(mode: str, kubectl: Kubectl, name: str) -> TrainingRun:
    """The recipe with LoRA, or with all weights trained on packed samples."""
    run = TrainingRun(kubectl, RECIPE, name)
    spec = run.manifest["spec"]
    spec["export"]["huggingFace"]["path"] = f"/data/out/{name}"
    if mode == "sft":
        spec["recipe"] = "llama3.2-1b-sft"
        spec["training"]["lr"] = 0.001
        spec["data"]["packing"] = True
        del spec["peft"], spec["export"]["merge"]
    return run


def conversions(kubectl: Kubectl, run: TrainingRun) -> dict[str, str]:
    """What the run's status has of the weights that were imported and exported, all of them audited."""
    status = (kubectl.get("megatronrecipe", run.name) or {})["status"]
    found = {name: status[name] for name in ("imported", "exported")}
    assert all(each["tensors"] > 0 for each in found.values()), found
    return {
        name: f"{each['source']} -> {each['path']}, {each['tensors']} tensors" for name, each in found.items()
    }


def prepared(kubectl: Kubectl, run: TrainingRun) -> str:
    """The message of the Job that has checked the data."""
    status = (kubectl.get("megatronrecipe", run.name) or {})["status"]
    (found,) = (each["message"] for each in status["conditions"] if each["type"] == "Prepared")
    return str(found)


def kill_a_pod(kubectl: Kubectl, pod: str) -> None:
    """Force-delete a pod."""
    kubectl.run("delete", "pod", pod, "--force", "--grace-period=0")


@pytest.mark.parametrize(
    ("mode", "kill", "interruption"),
    [
        pytest.param("lora", kill_a_pod, "pod", marks=pytest.mark.fine_tuning_only),
        ("sft", kill_a_rank, "rank"),
    ],
)
def test_a_run_with_a_fault_gives_the_weights_of_an_undisturbed_one(
    mode: str, kill: Callable[[Kubectl, str], None], interruption: str, kubectl: Kubectl
) -> None:
    undisturbed = of_mode(mode, kubectl, f"undisturbed-{mode}")
    undisturbed.apply()
    expected = finished(undisturbed)
    print(conversions(kubectl, undisturbed))
    assert ("; packed in " in prepared(kubectl, undisturbed)) == (mode == "sft")
    undisturbed.delete()

    run = of_mode(mode, kubectl, mode)
    run.apply()
    run.wait(lambda status: (status.checkpoint or 0) >= SAVE_INTERVAL, LONG_DEADLINE)
    kill(kubectl, f"{run.name}-worker-0")
    assert finished(run) == expected
    assert sorted(expected) == list(range(1, run.train_iters + 1))
    assert interruptions(kubectl, run) == [interruption]
    print(conversions(kubectl, run))
    run.delete()

    outputs = [f"/data/out/{each.name}" for each in (undisturbed, run)]
    files = [f"{folder}/model.safetensors" for folder in outputs]
    hashes = output_of(kubectl, f"hash-{mode}", "sha256sum", *files).split()[::2]
    assert hashes[0] == hashes[1]
    command = ("python", "/scripts/merged_losses.py", "/data/answers/validation.jsonl")
    losses = output_of(kubectl, f"losses-{mode}", *command, "/data/model", outputs[1])
    before, after = json.loads(losses.splitlines()[-1]).values()
    print(f"{mode}: loss of held-back answers: {before:.3f} before, {after:.3f} after")
    assert after < before
