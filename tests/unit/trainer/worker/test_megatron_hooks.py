"""Ranks of a launcher that was replaced during a save write no further file of it."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from megatron_trainer.checkpoints.checkpoint_lease import CheckpointLease, LeaseLostError
from megatron_trainer.checkpoints.selection import TRACKER
from megatron_trainer.telemetry.reporter import GENERATION_ENV, LEASE_ENV, Reporter
from megatron_trainer.telemetry.run_journal import RunJournal

pytest.importorskip("megatron.training", reason="make setup-trainer")


class Rank:
    """A rank of generation 3 with the hooks installed, whose Master pod holds the lease of `save`."""

    def __init__(self, save: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from megatron.core.dist_checkpointing import serialization
        from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync
        from megatron.training import checkpointing, training
        from megatron_trainer.worker import gpt, megatron_hooks

        self.save, self.checkpointing, self.serialization = save, checkpointing, serialization
        self.training = training
        monkeypatch.setenv(LEASE_ENV, "me")
        monkeypatch.setenv(GENERATION_ENV, "3")
        monkeypatch.setattr(megatron_hooks, "get_args", lambda: SimpleNamespace(save=str(save)))
        CheckpointLease(save, "me", "run").acquire()

        def remember(module: Any, name: str) -> None:
            # Restored after the test.
            monkeypatch.setattr(module, name, getattr(module, name))

        for module in (training, checkpointing, serialization, FileSystemWriterAsync, gpt):
            for name in HOOKED:
                if hasattr(module, name):
                    remember(module, name)
        spikes: Any = None
        self.hooks = megatron_hooks.MegatronHooks(Reporter(), None, spikes)

    def save_checkpoint(self, body: Callable[[], None]) -> None:
        """Megatron's save of a checkpoint, of which only `body` is done."""
        self.training.save_checkpoint_and_time = lambda _iteration: body()
        self.hooks.install()
        self.training.save_checkpoint_and_time(10)

    def replace_master(self) -> None:
        CheckpointLease(self.save, "another", "run").acquire()

    def write_metadata(self) -> None:
        from megatron.core.dist_checkpointing.core import CheckpointingConfig

        self.serialization.save_config(CheckpointingConfig("torch_dist"), str(self.save))

    def write_tracker(self) -> None:
        Path(self.checkpointing.get_checkpoint_tracker_filename(str(self.save))).write_text("10")


HOOKED = (
    "load_checkpoint",
    "save_checkpoint_and_time",
    "evaluate_and_print_results",
    "train_step",
    "dummy_train_step",
    "maybe_finalize_async_save",
    "schedule_async_save",
    "get_save_function_and_args",
    "save_config",
    "get_checkpoint_tracker_filename",
    "forward_step",
)


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rank:
    return Rank(tmp_path, monkeypatch)


def test_a_rank_whose_launcher_holds_the_lease_writes_metadata_and_tracker(rank: Rank) -> None:
    def body() -> None:
        rank.write_metadata()
        rank.write_tracker()

    rank.save_checkpoint(body)
    assert (rank.save / "metadata.json").exists()
    assert (rank.save / TRACKER).read_text() == "10"


def test_a_rank_that_was_frozen_before_the_metadata_does_not_complete_its_checkpoint(rank: Rank) -> None:
    def body() -> None:
        rank.replace_master()
        rank.write_metadata()

    with pytest.raises(LeaseLostError):
        rank.save_checkpoint(body)
    assert not (rank.save / "metadata.json").exists()


def test_a_rank_that_was_frozen_before_the_tracker_does_not_write_it(rank: Rank) -> None:
    def body() -> None:
        rank.replace_master()
        rank.write_tracker()

    with pytest.raises(LeaseLostError):
        rank.save_checkpoint(body)
    assert not (rank.save / TRACKER).exists()


def test_a_rank_of_an_earlier_generation_writes_no_shards(rank: Rank) -> None:
    from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync

    def body() -> None:
        RunJournal(rank.save, print).start_generation(4, None, None, None, 0.0)
        FileSystemWriterAsync(str(rank.save)).get_save_function_and_args()

    with pytest.raises(LeaseLostError, match="generation 4"):
        rank.save_checkpoint(body)


def test_every_step_of_an_asynchronous_save_checks_the_lease(rank: Rank) -> None:
    done: list[str] = []
    request = SimpleNamespace(
        finalize_fns=[lambda: (done.append("first"), rank.replace_master()), lambda: done.append("second")]
    )
    rank.checkpointing.schedule_async_save = lambda _request: None
    rank.hooks.install()
    rank.checkpointing.schedule_async_save(request)
    begin, first, second, _ = request.finalize_fns
    begin()
    first()
    with pytest.raises(LeaseLostError):
        second()
    assert done == ["first"]


def test_a_load_may_copy_into_parameters_that_require_a_gradient(rank: Rank) -> None:
    import torch
    from megatron_trainer.health.loss_spikes import LossSpikeDetector

    rank.hooks._spikes = LossSpikeDetector(None, 50, None)
    parameter = torch.nn.Parameter(torch.ones(4))

    def load() -> tuple[int, int]:
        parameter.view(2, 2).copy_(torch.zeros(2, 2))
        return 40, 0

    assert rank.hooks._load(load) == (40, 0)
    assert parameter.tolist() == [0.0] * 4
