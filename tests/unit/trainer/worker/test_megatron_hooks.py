"""Ranks of a launcher that was replaced during a save write no further file of it."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from megatron_contract.environment import PROGRESS_FILE, SAMPLES_DIR, VALIDATION_FILE
from megatron_contract.exit_codes import ExitCode
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
        from megatron_trainer.worker import gpt, megatron_hooks, step_phases
        from torch.distributed import ProcessGroup, Work
        from torch.distributed.checkpoint import FileSystemWriter

        self.save, self.checkpointing, self.serialization = save, checkpointing, serialization
        self.training = training
        monkeypatch.setenv(LEASE_ENV, "me")
        monkeypatch.setenv(GENERATION_ENV, "3")
        args = SimpleNamespace(save=str(save), no_save_optim=False, no_save_rng=False)
        monkeypatch.setattr(megatron_hooks, "get_args", lambda: args)
        CheckpointLease(save, "me", "run").acquire()

        def remember(module: Any, name: str) -> None:
            # Restored after the test.
            monkeypatch.setattr(module, name, getattr(module, name))

        writers = (FileSystemWriterAsync, FileSystemWriter)
        for module in (training, checkpointing, serialization, *writers, gpt):
            for name in HOOKED:
                if hasattr(module, name):
                    remember(module, name)
        for name in step_phases.COLLECTIVES:
            remember(ProcessGroup, name)
        remember(Work, "wait")
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
    "evaluate",
    "train_step",
    "dummy_train_step",
    "maybe_finalize_async_save",
    "schedule_async_save",
    "get_save_function_and_args",
    "save_config",
    "get_checkpoint_tracker_filename",
    "forward_step",
    "build_train_valid_test_data_loaders",
    "write_data",
    "finish",
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


def test_a_rank_that_ends_keeps_its_error_where_its_samples_cannot_be_written(rank: Rank) -> None:
    def fail(*_args: object) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    rank.hooks._samples = SimpleNamespace(is_recording=True, close=fail)  # type: ignore[assignment]
    rank.hooks.close()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_rank_that_ends_writes_its_samples_unless_it_was_replaced(replaced: bool, rank: Rank) -> None:
    from megatron_trainer.worker import sample_recorder

    recorder = rank.hooks._samples
    recorder._loader = object()  # type: ignore[assignment]
    start = sample_recorder.Start(3, 8, 1, 100, {})
    recorder._log = sample_recorder.SampleLog(rank.save / SAMPLES_DIR, 0, start)
    recorder._numbers = [64, 65]
    rank.hooks.stepping = 9
    if replaced:
        rank.replace_master()
    rank.hooks.close()
    written = list((rank.save / SAMPLES_DIR).glob("*"))
    assert len(written) == (0 if replaced else 1)
    if not replaced:
        _, read = map(json.loads, written[0].read_text().splitlines())
        assert (read["first"], read["numbers"], read["state"]) == (9, [[64, 2]], "unfinished")


def test_a_rank_of_an_earlier_generation_writes_no_shards(rank: Rank) -> None:
    from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync

    def body() -> None:
        RunJournal(rank.save, print).start_generation(4, None, None, None, 0.0)
        FileSystemWriterAsync(str(rank.save)).get_save_function_and_args()

    with pytest.raises(LeaseLostError, match="generation 4"):
        rank.save_checkpoint(body)


@pytest.mark.parametrize(("replaced_before", "files"), [("write_data", set()), ("finish", {"__0_0.distcp"})])
def test_a_rank_that_was_frozen_in_a_save_of_fsdp_writes_no_further_file(
    replaced_before: str, files: set[str], rank: Rank
) -> None:
    import torch
    from megatron_trainer.worker.failures import classify
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.api import CheckpointException

    class Writer(checkpoint.FileSystemWriter):
        def prepare_global_plan(self, plans: Any) -> Any:
            if replaced_before == "write_data":
                rank.replace_master()
            return super().prepare_global_plan(plans)

        def write_data(self, *args: Any) -> Any:
            written = super().write_data(*args)
            rank.replace_master()
            return written

    path = rank.save / "iter_0000010"
    state = {"layer": torch.ones(4)}
    with pytest.raises(CheckpointException) as caught:
        rank.save_checkpoint(lambda: checkpoint.save(state, storage_writer=Writer(path), no_dist=True))
    assert {file.name for file in path.iterdir()} == files
    failure = classify(caught.value)
    assert failure.code == ExitCode.PEER_LOST
    assert "no longer writes checkpoints" in str(failure)


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


def test_the_seconds_of_a_save_are_in_the_next_line_of_the_progress_file(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    from megatron_trainer.worker import megatron_hooks

    record = {"iteration": 11, "lmLoss": 2.0, "learningRate": 0.1, "tokens": 8, "stepSeconds": 1.0}
    clock = iter([5.0, 7.5, 100.0, 101.0])
    rank.save_checkpoint(lambda: None)
    monkeypatch.setattr(megatron_hooks, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    rank.hooks._between.update(saveSeconds=0.0)
    rank.training.save_checkpoint_and_time(10)
    rank.hooks._evaluate(lambda: None)
    for iteration in (11, 12):
        rank.hooks._append_progress(record | {"iteration": iteration})
    first, second = map(json.loads, (rank.save / PROGRESS_FILE).read_text().splitlines())
    assert (first["saveSeconds"], first["evaluateSeconds"]) == (2.5, 1.0)
    assert second.keys().isdisjoint({"saveSeconds", "evaluateSeconds"})


def test_only_the_loss_of_the_first_validation_set_is_in_the_file_of_evaluations(rank: Rank) -> None:
    import torch

    losses = iter([2.5, 9.0, 7.0, 2.25])
    rank.training.evaluate = lambda: ({"lm loss": torch.tensor(next(losses))}, None, False)

    def evaluate(prefix: str, sets: int = 1) -> None:
        rank.hooks._evaluate(lambda _: [rank.training.evaluate() for _ in range(sets)], prefix)

    rank.hooks._keeps_progress = lambda: True  # type: ignore[method-assign]
    rank.hooks.install()
    rank.hooks.iteration = 10
    evaluate("iteration 10", sets=2)
    evaluate("iteration 10 on test set")
    rank.hooks.iteration = 20
    evaluate("iteration 20")
    lines = [json.loads(line) for line in (rank.save / VALIDATION_FILE).read_text().splitlines()]
    assert [(line["iteration"], line["lmLoss"]) for line in lines] == [(10, 2.5), (20, 2.25)]


def test_an_evaluation_that_a_time_limit_ends_has_no_loss(rank: Rank) -> None:
    rank.training.evaluate = lambda: (None, None, True)
    rank.hooks.install()
    rank.hooks._evaluate(lambda _: rank.training.evaluate(), "iteration 10")
    assert not (rank.save / VALIDATION_FILE).exists()
