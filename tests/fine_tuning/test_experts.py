"""A model with experts on the local cluster: imported, trained in two layouts, exported."""

import json
from pathlib import Path
from typing import Any

from testkit.kubectl import Kubectl
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


def test_experts_trained_in_two_layouts_are_exported_with_a_lower_loss(kubectl: Kubectl) -> None:
    first = TrainingRun(kubectl, RECIPE)
    first.apply()
    beginning = finished(first)
    imported = status_of(kubectl, first)["imported"]
    assert (imported["source"], imported["path"]) == (MODEL, f"{MODEL}-megatron")
    assert imported["tensors"] > 0

    second = TrainingRun(kubectl, RECIPE, "resharded")
    spec = second.manifest["spec"]
    spec["accelerator"] |= {"count": 4, "perNode": 2}
    # A CPU has no sequence parallelism, which experts need at TP above 1.
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
    losses = output_of(
        kubectl, "loss-of-texts", "python", "/scripts/loss_of_texts.py", "/data/texts/questions.jsonl",
        MODEL, EXPORTED,
    )  # fmt: skip
    before, after = json.loads(losses.splitlines()[-1]).values()
    ends = [min(run[iteration]) for run in (beginning, continued) for iteration in (1, first.train_iters)]
    print(f"experts: loss of texts {before:.3f} before, {after:.3f} after; of iterations {ends}")
    assert after < before
