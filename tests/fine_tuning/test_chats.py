"""The README's recipe on the local cluster: chats prepared by two pods, LoRA, merged weights."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from localcluster.faults import Container

from testkit.kubectl import ROOT, Kubectl
from testkit.training_run import TrainingRun
from testkit.waiting import LONG_DEADLINE, wait_until
from tests.fine_tuning.cluster import (
    finished,
    interruptions,
    kill_a_rank,
    stop_while_it_writes_a_shard,
)
from tests.fine_tuning.pods import output_of

SAVE_INTERVAL = 10
SPLIT = "99.75,0.25,0"
ON_THE_LOCAL_CLUSTER: dict[str, Any] = {
    "recipe": "llama3.2-1b-lora",
    "accelerator": {"type": "cpu", "count": 4, "perNode": 2},
    "parallelism": {"tensorModelParallelSize": 2},
    "init": {"from": {"huggingFace": {"path": "/data/model"}}},
    "peft": {"dim": 8, "alpha": 16},
    # With SPLIT 40 of the 16,000 chats are held back, and an evaluation of 5 iterations of 8 has each once.
    "training": {
        **{"trainIters": 60, "globalBatchSize": 8, "microBatchSize": 1, "seqLength": 128},
        **{"lr": 0.01, "lrWarmupIters": 2, "evalInterval": 60, "evalIters": 5},
    },
    "checkpoint": {"volume": {"claimName": "weights"}, "saveInterval": SAVE_INTERVAL, "keep": 3},
    "recovery": {"nodes": {"avoidAfter": 0}},
}
"""Sections of the README's recipe that are another model's and another machine's."""
HASH = "cd /data/prepared && sha256sum $0-*_chats/training.jsonl $0-*_chats/validation.jsonl | cut -d' ' -f1"


def second_recipe(folder: Path, name: str, chats: str) -> Path:
    """The README's second recipe as a file, for the local cluster; `chats` is a folder of the data volume."""
    blocks = (ROOT / "README.md").read_text().split("```yaml\n")[1:]
    recipe = yaml.safe_load(blocks[1].partition("```")[0])
    recipe["metadata"]["name"] = name
    recipe["spec"] |= ON_THE_LOCAL_CLUSTER
    recipe["spec"]["data"] |= {"volume": {"claimName": "data"}, "split": SPLIT}
    recipe["spec"]["data"]["sources"][0]["path"] = f"/data/{chats}/*.jsonl"
    recipe["spec"]["data"]["prepare"]["name"] = name
    recipe["spec"]["export"]["huggingFace"]["path"] = f"/data/out/{name}"
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path


def kill_a_pod_that_prepares(kubectl: Kubectl, run: TrainingRun) -> None:
    """Force-delete the pod of index 1 in the middle of a shard, and wait for its replacement.

    It is stopped before: an index whose pod has ended is complete, and the Job replaces no pod of it.
    """
    selector = f"batch.kubernetes.io/job-name={run.name}-prepare,batch.kubernetes.io/job-completion-index=1"

    def stopped_at_work() -> dict[str, Any] | None:
        for pod in kubectl.select("pods", selector):
            ended = pod["status"].get("phase") in ("Succeeded", "Failed")
            assert not ended, f"{pod['metadata']['name']} ended before it could be stopped"
            for status in pod["status"].get("containerStatuses", ()):
                if "running" in status["state"] and stop_while_it_writes_a_shard(
                    Container(status["containerID"]).processes()
                ):
                    return pod
        return None

    pod = wait_until("a pod that writes a shard", stopped_at_work, LONG_DEADLINE)
    run.kill_pod(pod["metadata"]["name"])

    def replaced() -> bool:
        uids = {each["metadata"]["uid"] for each in kubectl.select("pods", selector)}
        return bool(uids - {pod["metadata"]["uid"]})

    wait_until("the replacement of the pod", replaced)


@dataclass(frozen=True)
class FinishedRun:
    """A run of the recipe that has succeeded."""

    run: TrainingRun
    losses: dict[int, set[float]]
    """By iteration; of iterations that were repeated, all."""


@pytest.fixture(scope="module")
def disturbed(kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """The run of which a pod that prepares is killed, and then a rank."""
    run = TrainingRun(kubectl, second_recipe(tmp_path_factory.mktemp("recipe"), "chats", "chats"))
    run.apply()
    kill_a_pod_that_prepares(kubectl, run)
    run.wait(lambda status: (status.checkpoint or 0) >= SAVE_INTERVAL, LONG_DEADLINE)
    kill_a_rank(kubectl, f"{run.name}-worker-0")
    return FinishedRun(run, finished(run))


def test_chats_prepared_and_trained_with_faults_give_the_loss_of_transformers(
    kubectl: Kubectl, disturbed: FinishedRun
) -> None:
    run = disturbed.run
    assert interruptions(kubectl, run) == ["rank"]
    assert sorted(disturbed.losses) == list(range(1, run.train_iters + 1))
    different = {iteration: each for iteration, each in disturbed.losses.items() if len(each) > 1}
    assert not different, "every repeated iteration has the loss that it had before"

    recipe = kubectl.get("megatronrecipe", run.name) or {}
    by_megatron = recipe["status"]["validation"]["loss"]
    folders = ["/data/model", f"/data/out/{run.name}"]
    command = ("python", "/scripts/loss_of_chats.py", f"/data/prepared/{run.name}-*_chats", *folders)
    before, after = json.loads(output_of(kubectl, "loss-of-chats", *command).splitlines()[-1]).values()
    print(f"held-back chats: {before:.4f} before, {after:.4f} after, {by_megatron:.4f} by Megatron")
    assert after < before
    assert after == pytest.approx(by_megatron, rel=1e-3), "Megatron computes in bfloat16"


@pytest.mark.fine_tuning_only
def test_the_faults_change_neither_the_prepared_chats_nor_a_loss(
    kubectl: Kubectl, disturbed: FinishedRun, tmp_path: Path
) -> None:
    undisturbed = TrainingRun(kubectl, second_recipe(tmp_path, "undisturbed-chats", "same-chats"))
    undisturbed.apply()
    assert finished(undisturbed) == disturbed.losses
    hashes = [
        output_of(kubectl, f"hash-{name}", "sh", "-c", HASH, name).split()
        for name in (undisturbed.name, disturbed.run.name)
    ]
    assert len(hashes[0]) == 2, "training.jsonl and validation.jsonl"
    assert hashes[0] == hashes[1], "the killed pod changed nothing"
