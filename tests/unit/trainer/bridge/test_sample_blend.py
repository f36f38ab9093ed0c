"""The order in which a run that fine-tunes reads the samples of sources with weights."""

from pathlib import Path

import numpy as np
import pytest
from megatron_trainer.bridge import sample_blend
from megatron_trainer.bridge.sample_blend import BlendError, Share

MIXES = [
    [Share(30, 0.8), Share(10, 0.2)],
    [Share(7, 3), Share(20, 1), Share(5, 1)],
    [Share(9, 0.34), Share(9, 0.33), Share(2, 0.33)],
]


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("batch", [1, 8, 64])
def test_each_iteration_has_the_share_of_each_source_but_for_less_than_two_samples(
    mix: list[Share], batch: int
) -> None:
    ends = np.cumsum([share.samples for share in mix])
    of = np.searchsorted(ends, sample_blend.order(mix, 50 * batch, 1), side="right")
    weights = np.array([share.weight for share in mix]) / sum(share.weight for share in mix)
    counts = np.array([np.bincount(some, minlength=len(mix)) for some in of.reshape(50, batch)])
    assert np.abs(counts - batch * weights).max() < 2
    assert np.abs(np.cumsum(counts, axis=0) - batch * weights * np.arange(1, 51)[:, None]).max() < 1
    assert counts.sum(axis=0).tolist() == sample_blend.samples_read(mix, 50 * batch)


@pytest.mark.parametrize("mix", MIXES)
def test_a_source_has_all_of_its_samples_in_each_epoch_in_another_order(mix: list[Share]) -> None:
    places = sample_blend.order(mix, 400, 1)
    start = 0
    for samples, _ in mix:
        mine = places[(places >= start) & (places < start + samples)]
        epochs = mine[: len(mine) // samples * samples].reshape(-1, samples)
        assert (np.sort(epochs, axis=1) == np.arange(start, start + samples)).all()
        assert len({tuple(epoch) for epoch in epochs.tolist()}) > 1
        start += samples


def test_the_order_depends_on_the_seed_and_not_on_the_length_of_the_run() -> None:
    (mix, *_) = MIXES
    whole = sample_blend.order(mix, 300, 7)
    assert whole[:100].tolist() == sample_blend.order(mix, 100, 7).tolist()
    assert whole.tolist() != sample_blend.order(mix, 300, 8).tolist()


def test_weights_are_written_and_read_and_may_be_of_one_file_alone(tmp_path: Path) -> None:
    mixes = {"training": MIXES[0], "validation": None}
    (tmp_path / sample_blend.FILE).write_text(sample_blend.dump(mixes))
    assert sample_blend.load(tmp_path) == mixes
    (tmp_path / sample_blend.FILE).write_text('{"training": [{"samples": 3}]}')
    with pytest.raises(BlendError, match=r"blend\.json: 'weight'"):
        sample_blend.load(tmp_path)


def test_weights_that_the_volume_does_not_return_are_no_damaged_ones(tmp_path: Path) -> None:
    # Reads of address 0 of a process's memory fail with EIO.
    (tmp_path / sample_blend.FILE).symlink_to("/proc/self/mem")
    with pytest.raises(OSError, match="Input/output error"):
        sample_blend.load(tmp_path)
