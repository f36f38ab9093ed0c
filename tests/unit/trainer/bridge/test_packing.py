"""What a run on packed samples checks before it trains. Stand-ins take the place of Bridge's modules."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from megatron_contract.bridge_run import MAX_EPOCHS, BridgeRun
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.bridge import packing
from megatron_trainer.telemetry.reporter import Reporter
from megatron_trainer.worker.failures import RankError


class Split(list[int]):
    """A dataset of packed sequences."""

    lines_of = ""


def built(
    monkeypatch: pytest.MonkeyPatch, training: int | None, validation: int, batch_of_validation: int | None
) -> list[Any]:
    """What Bridge's builder returns with the checks of a run that takes 4 sequences an iteration."""

    class Builder:
        train_path = "/data/chats/training.jsonl"

        def _build_datasets(self) -> list[Any]:
            return [None if training is None else Split(range(training)), Split(range(validation)), None]

    data, loaders = ModuleType("megatron.bridge.data"), ModuleType("megatron.bridge.data.loaders")
    gpt_sft: Any = ModuleType("megatron.bridge.data.builders.gpt_sft")
    vars(loaders)["get_train_valid_test_num_samples"] = lambda _config: (8, 8, 0)
    vars(data)["loaders"], gpt_sft.GPTSFTDatasetBuilder = loaders, Builder
    others = [ModuleType(name) for name in ("megatron.bridge", "megatron.bridge.data.builders")]
    for module in (data, loaders, gpt_sft, *others):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    config = SimpleNamespace(
        train=SimpleNamespace(global_batch_size=4),
        validation=SimpleNamespace(eval_global_batch_size=batch_of_validation),
    )
    packing.check_when_packed(config, None)
    return Builder()._build_datasets()


def test_a_file_without_samples_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RankError, match=r"/data/chats/training\.jsonl has no samples to train on") as raised:
        built(monkeypatch, None, 4, None)
    assert raised.value.code == ExitCode.BAD_DATA


def test_an_evaluation_takes_its_own_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert built(monkeypatch, 8, 2, 2)[0].lines_of == "/data/chats/training.jsonl"
    for sequences, own in ((2, None), (4, 8)):
        with pytest.raises(RankError, match=f"an iteration takes {own or 4}"):
            built(monkeypatch, 8, sequences, own)


@pytest.mark.parametrize("value", ["2", 1.5, True, [2]])
def test_epochs_that_are_no_number_are_refused(value: Any) -> None:
    with pytest.raises(RankError, match=f"{MAX_EPOCHS}: .* is not a number of epochs") as raised:
        packing.max_epochs(BridgeRun("f", {MAX_EPOCHS: value}))
    assert raised.value.code == ExitCode.USAGE


def test_a_run_without_epochs_reads_any_number() -> None:
    assert packing.max_epochs(BridgeRun("f", {})) is None
    assert packing.max_epochs(BridgeRun("f", {MAX_EPOCHS: 2})) == 2


class Events(Reporter):
    """Keeps what is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def send(self, event: str, **fields: Any) -> None:
        self.sent.append((event, fields))


def test_rank_0_reports_again_and_again_that_it_packs() -> None:
    events = Events()
    deadline = time.monotonic() + 30
    with packing.reporting(events, interval=0.01):
        while len(events.sent) < 4 and time.monotonic() < deadline:
            hash("a sample")
    assert events.sent[:4] == [("busy", {"doing": "packing samples"})] * 4


def test_rank_0_that_waits_for_a_volume_reports_nothing() -> None:
    events = Events()
    with packing.reporting(events, interval=0.02):
        # As a read does that never returns.
        threading.Event().wait(2)
    assert len(events.sent) <= 20, "of 100; the first ones are of what it did before"


_RANK = """
import datetime, sys, time, types
import torch

class Builder:
    packed_sequence_size = 8
    packed = do_validation = False
    train_path_packed = sys.argv[3]
    def prepare_data(self):
        if not self.packed:
            time.sleep(6)
        self.packed = True
    def build(self):
        if torch.distributed.get_rank() == 0:
            self.prepare_data()
        torch.distributed.barrier()
        return ["a split"]

for name in ("megatron.bridge", "megatron.bridge.data", "megatron.bridge.data.builders"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["megatron.bridge.data.builders.gpt_sft"] = of_bridge = types.ModuleType("gpt_sft")
of_bridge.GPTSFTDatasetBuilder = Builder
from megatron_trainer.bridge import packing
from megatron_trainer.telemetry.reporter import Reporter

torch.distributed.init_process_group(
    "gloo", init_method=f"file://{sys.argv[1]}", rank=int(sys.argv[2]), world_size=2,
    timeout=datetime.timedelta(seconds=2),
)
packing.wait_outside_collectives(Reporter())
assert Builder().build() == ["a split"]
"""


def test_packing_may_take_longer_than_a_collective(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _RANK, str(tmp_path / "store")]
    packed = f"{tmp_path}/packed/0/training.idx.parquet"
    ranks = [
        subprocess.Popen([*command, rank, packed], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in ("0", "1")
    ]
    output = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], output
    assert [text.count("rank 0 has packed samples for training in ") for text, _ in output] == [1, 0]
