"""A model with experts on the local cluster: its weights, trained in one layout and then in another."""

import json
from pathlib import Path

from testkit.kubectl import Kubectl
from testkit.training_run import TrainingRun
from testkit.waiting import LONG_DEADLINE
from tests.fine_tuning.cluster import finished, interruptions, kill_a_rank
from tests.fine_tuning.pods import output_of

RECIPE = Path(__file__).with_name("experts.yaml")
MODEL, IMPORTED, EXPORTED = "/data/experts", "/data/experts-megatron", "/data/out/experts"
SAVE_INTERVAL = 10


def test_experts_trained_in_two_layouts_are_exported_with_a_lower_loss(kubectl: Kubectl) -> None:
    convert = "megatron-convert"
    output_of(kubectl, "import-experts", convert, "import", "--from", MODEL, "--to", IMPORTED)
    first = TrainingRun(kubectl, RECIPE)
    first.apply()
    beginning = finished(first)

    second = TrainingRun(kubectl, RECIPE, "resharded")
    spec = second.manifest["spec"]
    spec["accelerator"] |= {"count": 4, "perNode": 2}
    # A CPU has no sequence parallelism, which experts need at TP above 1.
    spec["parallelism"] |= {"pipelineModelParallelSize": 2}
    spec["init"] = {"from": {"recipe": first.name}}
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
    command = ("export", "--from", f"/checkpoints/{second.name}", "--to", EXPORTED, "--base", MODEL)
    output_of(kubectl, "export-experts", convert, *command, "--parents")
    losses = output_of(
        kubectl, "loss-of-texts", "python", "/scripts/loss_of_texts.py", "/data/texts/questions.jsonl",
        MODEL, EXPORTED,
    )  # fmt: skip
    before, after = json.loads(losses.splitlines()[-1]).values()
    ends = [min(run[iteration]) for run in (beginning, continued) for iteration in (1, first.train_iters)]
    print(f"experts: loss of texts {before:.3f} before, {after:.3f} after; of iterations {ends}")
    assert after < before
