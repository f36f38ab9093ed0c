"""A model with experts on the local cluster: imported, trained in two layouts, exported."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from testkit.installation import OPERATOR_NAMESPACE
from testkit.kubectl import Kubectl, find_tool
from testkit.training_run import TrainingRun
from testkit.waiting import LONG_DEADLINE
from tests.fine_tuning.cluster import finished, interruptions, kill_a_rank
from tests.fine_tuning.pods import output_of

RECIPE = Path(__file__).with_name("experts.yaml")
MODEL, EXPORTED = "/data/experts", "/data/out/experts"
SAVE_INTERVAL = 10


def status_of(kubectl: Kubectl, run: TrainingRun) -> dict[str, Any]:
    """Status of the run's recipe."""
    return dict((kubectl.get("megatronrecipe", run.name) or {})["status"])


def losses_of_texts(kubectl: Kubectl, name: str, exported: str) -> tuple[float, float]:
    """The loss of transformers on texts, of the model that was imported and of the exported one."""
    folders = (MODEL, exported)
    command = ("python", "/scripts/loss_of_texts.py", "/data/texts/questions.jsonl", *folders)
    before, after = json.loads(output_of(kubectl, name, *command).splitlines()[-1]).values()
    return before, after


def reshard(kubectl: Kubectl, run: TrainingRun, folder: Path, *options: str) -> str:
    """Change the layout of a run with the CLI, and return what it printed. Raises CalledProcessError."""
    of_operator = Kubectl(kubectl.kubeconfig, OPERATOR_NAMESPACE)
    platform = folder / "platform.yaml"
    platform.write_text((of_operator.get("configmap", "megatron-platform") or {})["data"]["platform.yaml"])
    command: list[str | Path] = [Path(sys.executable).with_name("megatron"), "reshard", run.name, *options]
    command += ["--platform", platform, "--namespace", kubectl.namespace, "--kubeconfig", kubectl.kubeconfig]
    path = f"{Path(find_tool('kubectl')).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path}
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout


def test_experts_resharded_half_way_are_exported_with_a_lower_loss(
    kubectl: Kubectl, object_storage: dict[str, str], tmp_path: Path
) -> None:
    run = TrainingRun(kubectl, RECIPE, "half-way")
    exported = f"{EXPORTED}-{run.name}"
    spec = run.manifest["spec"]
    # A pod has the ranks of a TP group.
    spec["accelerator"]["perNode"] = 2
    spec["training"] |= {"trainIters": 80, "evalInterval": 80}
    spec["data"] |= {"maxEpochs": 2, "prepare": {"workers": 2, "objectStorage": object_storage}}
    spec["export"] = {"huggingFace": {"path": exported}}
    run.apply()
    run.wait(lambda status: (status.checkpoint or 0) >= SAVE_INTERVAL, LONG_DEADLINE)
    layout = ("tensor", "2", "pipeline", "2", "expert", "1")
    options = (f"--{word}-model-parallel-size" if word.isalpha() else word for word in layout)
    print(reshard(kubectl, run, tmp_path, *options, "--gpus", "4"))
    resharded_at = run.status().iteration or 0
    added = f"{run.name}-worker-0"
    run.wait(
        lambda status: (
            status.phase == "Training"
            and (status.iteration or 0) > resharded_at
            and kubectl.get("pod", added) is not None
        ),
        LONG_DEADLINE,
    )
    plan = status_of(kubectl, run)["plan"]
    sizes = (f"{kind}ParallelSize" for kind in ("tensorModel", "pipelineModel", "expertModel", "data"))
    assert [plan[size] for size in sizes] == [2, 2, 1, 1]
    assert plan["sequenceParallel"], "experts at TP above 1 require it"
    kill_a_rank(kubectl, added)
    losses = finished(run)

    assert sorted(losses) == list(range(1, run.train_iters + 1))
    # Ranks of another layout add in another order, in BF16.
    assert all(max(each) == pytest.approx(min(each), rel=1e-3) for each in losses.values())
    assert interruptions(kubectl, run)[-1] == "rank"
    status = status_of(kubectl, run)
    assert (status["imported"]["source"], status["exported"]["path"]) == (MODEL, exported)
    before, after = losses_of_texts(kubectl, "loss-half-way", exported)
    print(f"experts: loss of texts {before:.3f} before, {after:.3f} after")
    assert after < before


@pytest.mark.fine_tuning_only
def test_experts_trained_in_two_layouts_are_exported_with_a_lower_loss(
    kubectl: Kubectl, object_storage: dict[str, str]
) -> None:
    first = TrainingRun(kubectl, RECIPE)
    first.manifest["spec"]["data"]["prepare"] = {"workers": 2, "objectStorage": object_storage}
    first.apply()
    beginning = finished(first)
    imported = status_of(kubectl, first)["imported"]
    assert (imported["source"], imported["path"]) == (MODEL, f"{MODEL}-megatron")
    assert imported["tensors"] > 0

    second = TrainingRun(kubectl, RECIPE, "resharded")
    spec = second.manifest["spec"]
    spec["data"]["prepare"] = first.manifest["spec"]["data"]["prepare"]
    spec["accelerator"] |= {"count": 4, "perNode": 2}
    spec["parallelism"] |= {"pipelineModelParallelSize": 2}
    spec["init"] = {"from": {"recipe": first.name}}
    spec["export"] = {"huggingFace": {"path": EXPORTED, "base": MODEL}}
    second.apply()
    second.wait(lambda status: (status.checkpoint or 0) >= SAVE_INTERVAL, LONG_DEADLINE)
    kill_a_rank(kubectl, f"{second.name}-worker-0")
    continued = finished(second)

    assert interruptions(kubectl, second) == ["rank"]
    assert sorted(continued) == list(range(1, second.train_iters + 1))
    different = {iteration: each for iteration, each in continued.items() if len(each) > 1}
    assert not different, "every repeated iteration has the loss that it had before"
    # The same samples again, of weights that have learned from them.
    assert max(continued[1]) < min(beginning[1])
    exported = status_of(kubectl, second)["exported"]
    assert (exported["source"], exported["path"]) == (f"/checkpoints/{second.name}", EXPORTED)
    before, after = losses_of_texts(kubectl, "loss-of-texts", EXPORTED)
    ends = [min(run[iteration]) for run in (beginning, continued) for iteration in (1, first.train_iters)]
    print(f"experts: loss of texts {before:.3f} before, {after:.3f} after; of iterations {ends}")
    assert after < before
