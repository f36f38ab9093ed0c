"""What counts as a spike of the loss."""

import json
from pathlib import Path

from megatron_trainer.health.loss_spikes import SpikeWatch


def test_a_loss_beyond_the_factor_times_the_median_is_a_spike() -> None:
    watch = SpikeWatch(3.0, 20, None)
    assert [watch.judge(2.0) for _ in range(10)] == [None] * 10
    assert watch.judge(6.0) is None
    assert watch.judge(6.1) == "more than 3 x 2, the median of 11 before"


def test_without_a_factor_or_enough_losses_nothing_is_a_spike() -> None:
    for watch in (SpikeWatch(None, 20, None), SpikeWatch(3.0, 20, None)):
        assert [watch.judge(loss) for loss in (1.0, 1.0, 100.0)] == [None] * 3


def test_after_a_restart_the_losses_before_the_checkpoint_count_and_later_ones_do_not(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    losses = [(i, 2.0) for i in range(1, 15)] + [(i, 50.0) for i in (13, 14, 15)]
    path.write_text("".join(json.dumps({"iteration": i, "lmLoss": loss}) + "\n" for i, loss in losses))
    watch = SpikeWatch(3.0, 20, path)
    watch.remember(12)
    assert watch.judge(7.0) == "more than 3 x 2, the median of 12 before"
