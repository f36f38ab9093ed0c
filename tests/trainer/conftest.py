"""Fixtures of the trainer's tests: a corpus, runs of one and two pods, and processes that are forked."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from megatron_contract.bridge_run import Value

from testkit.weights.warm import WarmConverter
from tests.trainer import text_corpus
from tests.trainer.bridge_run import BridgeGang, NewRun, write_model
from tests.trainer.gang import Gang
from tests.trainer.warm_process import WarmProcess


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python's standard library as a corpus, built by megatron-prepare, then read-only like a data volume."""
    folder = tmp_path_factory.mktemp("corpus")
    text_corpus.write(folder, Path(os.__file__).parent)
    folder.chmod(0o555)
    return folder


@pytest.fixture(scope="session")
def warm() -> Iterator[WarmProcess]:
    """The process that forks launchers."""
    process = WarmProcess()
    yield process
    process.close()


@pytest.fixture(scope="session")
def warm_bridge() -> Iterator[WarmProcess]:
    """The process that forks launchers, which has imported Megatron-Bridge."""
    process = WarmProcess("cpu", {"MEGATRON_PLATFORM": "cpu", "MEGATRON_ENGINE": "bridge"})
    yield process
    process.close()


@pytest.fixture(scope="module")
def new_run(tmp_path_factory: pytest.TempPathFactory, warm_bridge: WarmProcess) -> Iterator[NewRun]:
    """Makes a run of a function of Llama 3.2 1B, at TP 2 unless the overrides name another layout."""
    runs: list[BridgeGang] = []
    model = write_model(tmp_path_factory.mktemp("model"))

    def made(kind: str, **overrides: Value) -> BridgeGang:
        folder, function = tmp_path_factory.mktemp("run"), f"llama32_1b_{kind}_config"
        runs.append(BridgeGang(folder, warm_bridge, model, function, **overrides))
        return runs[-1]

    yield made
    for run in runs:
        run.stop()


@pytest.fixture(scope="session")
def converter() -> Iterator[WarmConverter]:
    """The process that forks conversions, which has imported Megatron-Bridge."""
    process = WarmConverter()
    yield process
    process.close()


@pytest.fixture
def gang(tmp_path: Path, corpus: Path, warm: WarmProcess) -> Iterator[Gang]:
    """A run of two pods of two ranks."""
    run = Gang(tmp_path, corpus, nodes=2, warm=warm)
    yield run
    run.stop()


@pytest.fixture
def pod(tmp_path: Path, corpus: Path, warm: WarmProcess) -> Iterator[Gang]:
    """The same run in one pod of four ranks, with the same layout and losses."""
    run = Gang(tmp_path, corpus, nodes=1, warm=warm)
    yield run
    run.stop()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Gang:
    """A run without any failure, started cold: every other run must have its losses."""
    run = Gang(tmp_path_factory.mktemp("undisturbed"), corpus, nodes=1)
    run.start()
    assert run.wait() == [0], run.log()[-3000:]
    return run
