"""Fixtures of the trainer's tests: a corpus, a run of two pods, and a run that nothing happened to."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trainer.gang import Gang


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python's own library as a corpus, prepared by megatron-prepare, then read-only as a data volume is."""
    folder = tmp_path_factory.mktemp("corpus")
    command = [
        *(sys.executable, "-W", "ignore", "-m", "megatron_trainer.data.prepare"),
        *("--source", str(Path(os.__file__).parent), "--include", "*.py"),
        *("--output-prefix", str(folder / "text"), "--tokenizer-dir", str(folder / "tokenizer")),
        *("--tokenizer-vocab-size", "1000", "--append-eod", "--workers", "1"),
    ]
    environment = os.environ | {"MEGATRON_TERMINATION_LOG": str(folder / "termination")}
    subprocess.run(command, env=environment, check=True)
    folder.chmod(0o555)
    return folder


@pytest.fixture
def gang(tmp_path: Path, corpus: Path) -> Iterator[Gang]:
    """A run of two pods of two ranks."""
    run = Gang(tmp_path, corpus, nodes=2)
    yield run
    run.stop()


@pytest.fixture
def pod(tmp_path: Path, corpus: Path) -> Iterator[Gang]:
    """The same run in one pod of four ranks: the layout is the same, and so are the losses."""
    run = Gang(tmp_path, corpus, nodes=1)
    yield run
    run.stop()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Gang:
    """A run that nothing happened to: its losses are what every other run must have."""
    run = Gang(tmp_path_factory.mktemp("undisturbed"), corpus, nodes=1)
    run.start()
    assert run.wait() == [0], run.log()[-3000:]
    return run
