"""What a rank's exception means: for its node, for its iteration and for the checkpoint that it loaded."""

import errno
import os
import pickle
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_contract.hardware import Evidence

torch = pytest.importorskip("torch", reason="make setup-trainer")
pytest.importorskip("megatron.training", reason="make setup-trainer")

ECC = "CUDA error: uncorrectable ECC error encountered"


@pytest.mark.parametrize(
    "text",
    [
        ECC,
        "CUDA error: device-side assert triggered",
        "CUDA error: an illegal memory access was encountered",
        "NCCL error in: NCCLUtils.cpp:77, unhandled cuda error",
    ],
)
def test_an_error_of_the_device_in_a_step_names_no_iteration(text: str) -> None:
    from megatron_trainer.worker.failures import classify_in_loop

    failure = classify_in_loop(RuntimeError(text), 6, stepping=7)
    assert (failure.code, failure.iteration) == (ExitCode.WORKER_DIED, None)


def test_an_error_of_the_program_in_a_step_names_its_iteration() -> None:
    from megatron_trainer.worker.failures import classify_in_loop

    failure = classify_in_loop(RuntimeError("sample 7 cannot be read"), 6, stepping=7)
    assert (failure.iteration, failure.evidence) == (7, None)


NAN = "Unexpected result nan (message='found NaN in local forward loss calculation')"


@pytest.mark.parametrize(
    ("stepping", "iteration", "found"),
    [(7, 7, "iteration 7"), (None, 6, "evaluation after iteration 6")],
    ids=["in a step", "in an evaluation"],
)
def test_a_loss_that_is_not_finite_names_the_iteration_of_its_weights(
    stepping: int | None, iteration: int, found: str
) -> None:
    from megatron_trainer.worker.failures import classify_in_loop

    error = RuntimeError(f"Rank 0, node nccl-test, device 0, iteration 8: {NAN}")
    failure = classify_in_loop(error, 6, stepping)
    assert (failure.code, failure.iteration) == (ExitCode.LOSS_NOT_FINITE, iteration)
    assert str(failure) == f"Rank 0, node nccl-test, device 0, {found}: {NAN}"


def test_a_result_that_megatron_rejects_on_another_gpu_too_names_its_iteration() -> None:
    from megatron_trainer.worker.failures import FAILED_ON_RESULT_VALIDATION, classify_early_exit

    failure = classify_early_exit(FAILED_ON_RESULT_VALIDATION, 6)
    assert (failure.code, failure.iteration) == (ExitCode.LOSS_NOT_FINITE, 7)


def raised_reading(read: Callable[[], object]) -> Exception:
    """The error that a rank gets of a sample which a process of its data loader could not read."""
    from torch._utils import ExceptionWrapper

    try:
        read()
    except Exception:
        sent = ExceptionWrapper(where="in DataLoader worker process 0")
    with pytest.raises(Exception, match="in DataLoader worker") as raised:
        sent.reraise()
    return raised.value


class Killed:
    """A dataset whose reading process is killed."""

    def __init__(self, number: signal.Signals) -> None:
        self._number = number

    def __len__(self) -> int:
        return 1

    def __getitem__(self, _index: int) -> None:
        os.kill(os.getpid(), self._number)


def raised_as_killed(number: signal.Signals) -> Exception:
    """The error that a rank gets whose data loader loses a process."""
    from torch.utils.data import DataLoader

    samples: Any = Killed(number)
    with pytest.raises(RuntimeError, match="DataLoader worker") as raised:
        next(iter(DataLoader(samples, num_workers=1, multiprocessing_context="fork")))
    return raised.value


def fail_while_handled(code: int) -> None:
    """As a library does that takes what it cannot read for a wrong sample."""
    try:
        raise OSError(code, os.strerror(code))
    except OSError as error:
        raise ValueError("no sample") from error


@pytest.mark.forks
def test_an_error_of_the_volume_in_a_step_names_no_iteration() -> None:
    from megatron_trainer.worker.failures import classify_in_loop

    errors = [
        OSError(errno.EIO, os.strerror(errno.EIO)),
        raised_reading(lambda: fail(OSError(errno.EIO, os.strerror(errno.EIO)))),
        raised_reading(lambda: fail_while_handled(errno.ESTALE)),
        raised_as_killed(signal.SIGBUS),
    ]
    for error in errors:
        failure = classify_in_loop(error, 204, stepping=205)
        assert (failure.code, failure.iteration) == (ExitCode.WORKER_DIED, None)


@pytest.mark.forks
def test_a_sample_that_is_missing_or_wrong_names_its_iteration() -> None:
    from megatron_trainer.worker.failures import classify_in_loop

    errors = [
        FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)),
        raised_reading(lambda: fail_while_handled(errno.ENOENT)),
        raised_reading(lambda: fail(ValueError("sample 7 has 5 tokens"))),
        raised_as_killed(signal.SIGSEGV),
    ]
    for error in errors:
        assert classify_in_loop(error, 204, stepping=205).iteration == 205


def test_a_network_error_of_nccl_is_a_lost_peer() -> None:
    from megatron_trainer.worker.failures import classify_in_loop

    for text in ("unhandled system error", "remote process exited or there was a network error"):
        failure = classify_in_loop(RuntimeError(f"NCCL error: {text}"), 6, stepping=7)
        assert (failure.code, failure.iteration, failure.evidence) == (ExitCode.PEER_LOST, None, None)


def test_a_device_error_while_a_checkpoint_is_loaded_or_saved_is_evidence_and_touches_no_checkpoint() -> None:
    from megatron_trainer.worker.failures import classify
    from megatron_trainer.worker.megatron_hooks import UnreadableCheckpointError
    from torch.distributed.checkpoint.api import CheckpointException

    alone = raised_loading(lambda: fail(RuntimeError(ECC)))
    together = UnreadableCheckpointError(40)
    frames: Any = traceback.StackSummary.from_list([])
    saving = CheckpointException("save", {1: (RuntimeError(ECC), frames)})
    together.__cause__ = saving
    for error in (alone, together, saving):
        failure = classify(error)
        assert (failure.evidence, failure.unreadable) == (Evidence.DEVICE_MEMORY, None)


def test_a_damaged_checkpoint_is_found_whichever_rank_failed_first() -> None:
    from megatron_trainer.worker.failures import classify
    from megatron_trainer.worker.megatron_hooks import UnreadableCheckpointError
    from torch.distributed.checkpoint.api import CheckpointException

    frames: Any = traceback.StackSummary.from_list([])
    failures: dict[int, Any] = {
        2: (RuntimeError("Read error [127.0.0.1]:1665: Connection reset by peer"), frames),
        1: (ValueError("a tensor is missing"), frames),
        0: (pickle.UnpicklingError("Weights only load failed"), frames),
    }
    error = UnreadableCheckpointError(40)
    error.__cause__ = CheckpointException("load", failures)
    failure = classify(error)
    assert (failure.code, failure.unreadable) == (ExitCode.WORKER_DIED, 40)
    assert "UnpicklingError" in str(failure)
    del failures[0]
    failure = classify(error)
    assert (failure.code, failure.unreadable) == (ExitCode.WORKER_DIED, None)
    del failures[1]
    assert classify(error).code == ExitCode.PEER_LOST


def fail(error: Exception) -> None:
    raise error


def raised_loading(body: Callable[[], object]) -> BaseException:
    """The error that a rank reports when `body` fails while it loads checkpoint 40."""
    from megatron_trainer.worker.megatron_hooks import UnreadableCheckpointError

    try:
        try:
            body()
        except Exception as error:
            raise UnreadableCheckpointError(40) from error
    except UnreadableCheckpointError as error:
        return error
    raise AssertionError("nothing was raised")


def write_into_leaf() -> None:
    leaf = torch.ones(4, requires_grad=True)
    leaf.view(2, 2).copy_(torch.zeros(2, 2))


@pytest.mark.parametrize(
    "body",
    [
        write_into_leaf,
        lambda: {}["missing key"],
        lambda: fail(RuntimeError("shape mismatch: 3 and 4")),
        lambda: fail(ModuleNotFoundError("No module named 'megatron.core.moved'")),
        lambda: fail(OSError("stale file handle")),
    ],
)
def test_a_load_that_fails_for_another_reason_than_the_bytes_blames_no_checkpoint(
    body: Callable[[], object],
) -> None:
    from megatron_trainer.worker.failures import classify

    failure = classify(raised_loading(body))
    assert (failure.code, failure.unreadable, failure.evidence) == (ExitCode.WORKER_DIED, None, None)


@pytest.mark.parametrize("seed", range(8))
def test_damaged_bytes_blame_the_checkpoint(seed: int, tmp_path: Path) -> None:
    from megatron_trainer.worker.failures import classify

    archive, pickled = tmp_path / "shard", tmp_path / "metadata"
    torch.save({"weight": torch.ones(1000)}, archive)
    content = archive.read_bytes()
    archive.write_bytes(content[: len(content) * seed // 8])
    pickled.write_bytes(pickle.dumps({"a": list(range(100))})[: 3 + seed])

    def load_pickle() -> None:
        with pickled.open("rb") as file:
            pickle.load(file)

    for body in (lambda: torch.load(archive), load_pickle):
        assert classify(raised_loading(body)).unreadable == 40


@pytest.mark.parametrize("failures", [{}, {0: (RuntimeError("Missing key in checkpoint: norm"), [])}])
def test_weights_that_cannot_be_loaded_are_not_called_a_failed_save(
    failures: dict[int, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from megatron.core.dist_checkpointing import serialization
    from megatron_trainer.worker.failures import classify
    from torch.distributed.checkpoint.api import CheckpointException

    def refuse(_folder: object) -> None:
        raise CheckpointException("load", failures)

    monkeypatch.setattr(serialization, "verify_checkpoint", refuse)
    with pytest.raises(CheckpointException) as caught:
        serialization.load({}, str(tmp_path))
    assert str(classify(caught.value)).startswith("weights could not be loaded")
