"""The ends of lines that a Job writes beside a file to fine-tune on, as Megatron-Bridge takes them."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from megatron_trainer.bridge import line_index
from megatron_trainer.data.line_ends import write_line_ends

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None,
    reason="what Megatron-Bridge imports is not installed: run make bridge-training",
)
NEWLINE = ord("\n")
REPORTED = "rank 0 has looked for the ends of 3 lines of"


@pytest.fixture
def utils(monkeypatch: pytest.MonkeyPatch) -> Any:
    from megatron_trainer.weights import cpu_model

    cpu_model.import_bridge()
    from megatron.bridge.data.datasets import utils

    monkeypatch.setattr(utils, "build_index_files", utils.build_index_files)
    line_index.install()
    return utils


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "training.jsonl"
    file.write_text('{"a": "é"}\n{}\n{"b": 1}\n')
    return file


def write_ends(path: Path) -> None:
    np.save(f"{path}{line_index.SUFFIX}", line_index.find_ends(path))


def test_bridge_takes_the_ends_that_a_job_has_written(
    utils: Any, path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("the file is not read again")

    write_ends(path)
    folder = str(tmp_path / "index")
    utils.build_index_files([str(path)], NEWLINE, workers=1, build_index_fn=never, index_mapping_dir=folder)
    (written,) = (tmp_path / "index").rglob("*.npy")
    assert np.array_equal(np.load(written), utils.build_index_from_memdata(str(path), NEWLINE))
    assert REPORTED not in capfd.readouterr().out


def test_bridge_takes_the_ends_that_the_check_of_a_users_file_has_written_with_the_checkpoints(
    utils: Any, path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path.write_text(path.read_text() + "\n\n")
    folder = tmp_path / "data-cache"
    write_line_ends(path, folder)
    assert not Path(f"{path}{line_index.SUFFIX}").exists()
    utils.build_index_files([str(path)], NEWLINE, workers=1, index_mapping_dir=str(folder))
    (written,) = folder.rglob("*.idx.npy")
    # Bridge leaves out empty lines at the end.
    assert np.array_equal(np.load(written), utils.build_index_from_memdata(str(path), NEWLINE))
    assert REPORTED not in capfd.readouterr().out


@pytest.mark.parametrize("text", ["{}", "{}\n{}", "{}\n\n{}", "{}\n{}\n", "{}\n{}\n\n\n", "\n{}", "\n"])
def test_bridge_takes_the_ends_of_files_with_and_without_a_last_newline(
    text: str, utils: Any, path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path.write_text(text)
    write_ends(path)
    utils.build_index_files([str(path)], NEWLINE, workers=1, index_mapping_dir=str(tmp_path / "index"))
    (written,) = (tmp_path / "index").rglob("*.npy")
    assert np.array_equal(np.load(written), utils.build_index_from_memdata(str(path), NEWLINE))
    assert "rank 0 has looked for" not in capfd.readouterr().out


@pytest.mark.parametrize("state", ["nothing", "of a shorter file", "of other lines", "empty"])
def test_rank_0_reports_that_it_looks_for_ends_which_no_job_has_written(
    state: str, utils: Any, path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = path.read_text()
    if state == "of a shorter file":
        path.write_text(whole[:-9])
    if state == "of other lines":
        path.write_text('{}\n{"a": "é"}\n{"b": 1}\n')
    if state == "empty":
        Path(f"{path}{line_index.SUFFIX}").touch()
    elif state != "nothing":
        write_ends(path)
    path.write_text(whole)
    utils.build_index_files([str(path)], NEWLINE, workers=1, index_mapping_dir=str(tmp_path / "index"))
    (written,) = (tmp_path / "index").rglob("*.npy")
    assert np.array_equal(np.load(written), utils.build_index_from_memdata(str(path), NEWLINE))
    assert f"{REPORTED} {path} for " in capfd.readouterr().out
