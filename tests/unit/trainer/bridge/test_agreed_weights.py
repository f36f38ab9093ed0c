"""That all ranks of a start take the same weights, and what later starts of a run require of them."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.bridge import agreed_weights, starting_weights
from megatron_trainer.bridge.agreed_weights import Start
from megatron_trainer.bridge.starting_weights import StartingWeights
from megatron_trainer.bridge.weights_record import WeightsRecord
from megatron_trainer.checkpoints import selection
from megatron_trainer.worker.failures import RankError

from tests.unit.trainer.bridge.test_starting_weights import checkpoint, imported
from tests.unit.trainer.checkpoints.test_selection import fail_reads


def first(rank: int, name: str = "launcher/0") -> Start:
    return Start(rank, None, name)


def resumed(rank: int, name: str = "launcher/1") -> Start:
    return Start(rank, 5, name)


def test_ranks_that_look_later_take_the_iteration_of_rank_0(tmp_path: Path) -> None:
    base, save = tmp_path / "base", tmp_path / "run"
    taken = checkpoint(base, 10)
    assert agreed_weights.of_start(base, save, first(0), adapts=False).base == taken
    checkpoint(base, 20)
    assert agreed_weights.of_start(base, save, first(1), adapts=False) == StartingWeights(base, taken)
    record = WeightsRecord.read(save)
    assert record is not None
    assert record.weights == taken


def test_ranks_take_the_adapters_that_rank_0_has_found(tmp_path: Path) -> None:
    base, lora, save = imported(tmp_path / "base"), tmp_path / "lora", tmp_path / "run"
    adapters = checkpoint(lora, 10, base)
    agreed_weights.of_start(lora, save, first(0), adapts=True)
    checkpoint(lora, 20, base)
    found = agreed_weights.of_start(lora, save, first(1), adapts=True)
    assert found == StartingWeights(lora, base, adapters)


def test_ranks_wait_for_the_record_of_their_own_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another start has left one, and has no checkpoint."""
    base, save = tmp_path / "base", tmp_path / "run"
    checkpoint(base, 10)
    agreed_weights.of_start(base, save, first(0, "before/0"), adapts=True)
    newest = checkpoint(base, 20)
    waits = threading.Event()
    monkeypatch.setattr(agreed_weights.time, "sleep", lambda _: waits.set())
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(agreed_weights.of_start, base, save, first(1), adapts=True)
        assert waits.wait(60)
        agreed_weights.of_start(base, save, first(0), adapts=True)
        assert other.result(60).base == newest


def test_a_volume_that_ranks_do_not_share_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreed_weights, "WAIT_SECONDS", 0)
    with pytest.raises(RankError, match="all nodes must mount the same volume there") as error:
        agreed_weights.of_start(checkpoint(tmp_path / "base", 10), tmp_path, first(1), adapts=False)
    assert error.value.code == ExitCode.WORKER_DIED


@pytest.mark.parametrize("rank", [0, 1])
def test_adapters_resume_with_the_weights_that_the_first_start_has_recorded(
    rank: int, tmp_path: Path
) -> None:
    base, save = tmp_path / "base", tmp_path / "run"
    taken = checkpoint(base, 10)
    agreed_weights.of_start(base, save, first(0), adapts=True)
    checkpoint(base, 20)
    assert agreed_weights.of_start(base, save, resumed(rank), adapts=True).base == taken
    taken.rename(tmp_path / "elsewhere")
    with pytest.raises(RankError, match=f"belong to the weights in {taken}, which is not there") as error:
        agreed_weights.of_start(base, save, resumed(rank), adapts=True)
    assert error.value.code == ExitCode.BAD_DATA


def test_adapters_without_a_record_of_the_weights_get_one_when_they_resume(tmp_path: Path) -> None:
    """As of release 0.2.0, or of a run whose arguments name another folder since."""
    save, base = tmp_path / "run", imported(tmp_path / "base")
    assert agreed_weights.of_start(base, save, resumed(0), adapts=True).base == base
    moved = imported(tmp_path / "moved")
    assert agreed_weights.of_start(moved, save, resumed(0), adapts=True).base == moved
    assert agreed_weights.of_start(moved, save, resumed(1), adapts=True).base == moved


def test_a_run_without_adapters_resumes_where_the_weights_that_it_started_from_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, save = tmp_path / "gone", tmp_path / "run"
    own = checkpoint(save, 5)
    assert agreed_weights.of_start(asked, save, resumed(0), adapts=False).base == own
    monkeypatch.setattr(selection, "why_incomplete", lambda *_: None)
    assert agreed_weights.before_start(asked, save, adapts=False).base == own


def test_the_check_before_a_start_records_nothing(tmp_path: Path) -> None:
    base, save = tmp_path / "base", tmp_path / "run"
    newest = checkpoint(base, 10)
    assert agreed_weights.before_start(base, save, adapts=True).base == newest
    assert not save.exists()
    assert starting_weights.find(base).base == newest


@pytest.mark.parametrize("name", ["run/weights.json", "base/iter_0000010/.metadata"])
def test_what_cannot_be_read_now_neither_replaces_the_record_nor_ends_the_run(
    name: str, tmp_path: Path
) -> None:
    base, save = tmp_path / "base", tmp_path / "run"
    checkpoint(base, 10)
    agreed_weights.of_start(base, save, first(0), adapts=True)
    checkpoint(base, 20)
    file = tmp_path / name
    content = file.read_bytes()
    fail_reads(file)
    with pytest.raises(OSError, match="Input/output error"):
        agreed_weights.of_start(base, save, resumed(0), adapts=True)
    file.unlink()
    file.write_bytes(content)
    assert agreed_weights.of_start(base, save, resumed(0), adapts=True).base == base / "iter_0000010"


def test_adapters_whose_configuration_cannot_be_read_now_do_not_count_as_weights(tmp_path: Path) -> None:
    adapters = checkpoint(tmp_path / "lora", 10, imported(tmp_path / "base"))
    fail_reads(adapters / "run_config.yaml")
    with pytest.raises(OSError, match="Input/output error"):
        starting_weights.find(tmp_path / "lora")
