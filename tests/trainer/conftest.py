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
        *(sys.executable, "-W", "ignore", "-m", "megatron_trainer.prepare"),
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
    run = Gang(tmp_path, corpus)
    yield run
    run.stop()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Gang:
    """A run that nothing happened to: its losses are what every other run must have."""
    run = Gang(tmp_path_factory.mktemp("undisturbed"), corpus)
    run.start()
    assert run.wait() == [0, 0], run.log()[-3000:]
    return run
