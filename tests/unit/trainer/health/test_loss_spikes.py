"""Which losses count as spikes."""

import json
from pathlib import Path

from megatron_trainer.health.loss_spikes import LossSpikeDetector


def test_a_loss_beyond_the_factor_times_the_median_is_a_spike() -> None:
    detector = LossSpikeDetector(3.0, 20, None)
    assert [detector.check(2.0) for _ in range(10)] == [None] * 10
    assert detector.check(6.0) is None
    assert detector.check(6.1) == "more than 3 x 2, the median of 11 before"


def test_without_a_factor_or_enough_losses_nothing_is_a_spike() -> None:
    for detector in (LossSpikeDetector(None, 20, None), LossSpikeDetector(3.0, 20, None)):
        assert [detector.check(loss) for loss in (1.0, 1.0, 100.0)] == [None] * 3


def test_after_a_restart_only_losses_before_the_checkpoint_count(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    losses = [(i, 2.0) for i in range(1, 15)] + [(i, 50.0) for i in (13, 14, 15)]
    path.write_text("".join(json.dumps({"iteration": i, "lmLoss": loss}) + "\n" for i, loss in losses))
    detector = LossSpikeDetector(3.0, 20, path)
    detector.load_history(12)
    assert detector.check(7.0) == "more than 3 x 2, the median of 12 before"
