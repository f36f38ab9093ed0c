"""A vision-language model on the local cluster: weights in, pictures prepared by two pods, a rank killed."""

import json
from pathlib import Path

import pytest

from testkit.kubectl import Kubectl
from testkit.training_run import TrainingRun
from testkit.waiting import LONG_DEADLINE
from tests.fine_tuning.cluster import finished, interruptions, kill_a_rank
from tests.fine_tuning.pods import output_of

SAVE_INTERVAL = 10


@pytest.mark.fine_tuning_only
def test_a_vision_language_model_learns_colours_though_a_rank_is_killed(kubectl: Kubectl) -> None:
    output_of(kubectl, "make-pictures", "python", "/scripts/image_text.py", "/data")
    run = TrainingRun(kubectl, Path(__file__).with_name("pictures.yaml"), "pictures")
    run.apply()
    run.wait(lambda status: (status.checkpoint or 0) >= SAVE_INTERVAL, LONG_DEADLINE)
    kill_a_rank(kubectl, f"{run.name}-worker-0")
    losses = finished(run)

    assert sorted(losses) == list(range(1, run.train_iters + 1))
    # An iteration that was repeated has the same loss.
    assert all(len(found) == 1 for found in losses.values()), losses
    assert interruptions(kubectl, run) == ["rank"]
    command = ("python", "/scripts/loss_of_pictures.py", "/data/vision", "/data/out/pictures")
    printed = output_of(kubectl, "losses-pictures", *command)
    before, after = json.loads(printed.splitlines()[-1]).values()
    print(f"pictures: loss of the colours of held-back pictures: {before:.3f} before, {after:.3f} after")
    assert after < before / 2
    run.delete()
