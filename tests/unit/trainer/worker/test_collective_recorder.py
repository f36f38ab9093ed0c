"""Settings of torch's flight recorder, and that the torch that is locked reads them by these names."""

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from megatron_trainer.telemetry.reporter import STACKS_ENV
from megatron_trainer.worker.collective_recorder import record_collectives

SETTINGS = (
    "TORCH_FR_BUFFER_SIZE",
    "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_NCCL_DUMP_ON_TIMEOUT",
    "TORCH_FR_DUMP_TEMP_FILE",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
)
LIBRARIES = Path(torch.__file__).parent / "lib"

# DebugInfoWriter::getWriter(rank) and write(text), as the NCCL backend calls them after a time-out.
DUMP = """
import ctypes, sys
import torch
library = ctypes.CDLL("libtorch_cpu.so")
get, write = library._ZN4c10d15DebugInfoWriter9getWriterEi, library[sys.argv[1]]
get.restype = ctypes.c_void_p
text = ctypes.create_string_buffer(b"recorded")
# std::string of libstdc++: pointer, length, capacity or the text itself.
string = (ctypes.c_size_t * 4)(ctypes.addressof(text), 8, 8, 0)
write(ctypes.c_void_p(get(3)), string)
"""
WRITE = "_ZN4c10d15DebugInfoWriter5writeERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*SETTINGS, STACKS_ENV, "LOCAL_RANK"):
        # Set and deleted, so that what the code under test sets is undone.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_recorder_and_dump_are_on_and_the_dump_is_beside_the_checkpoints(tmp_path: Path) -> None:
    record_collectives(5, tmp_path)
    assert {name: os.environ.get(name) for name in SETTINGS} == {
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/flight-recorder/rank-",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": None,
    }
    assert (tmp_path / "flight-recorder").is_dir()


@pytest.mark.parametrize("name", ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"])
def test_the_users_size_holds_for_both_readers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "50")
    record_collectives(0, None)
    assert os.environ["TORCH_FR_BUFFER_SIZE"] == os.environ["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "50"


@pytest.mark.parametrize("name", ["TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"])
def test_the_users_place_and_switch_are_kept(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(name, "/elsewhere/rank")
    monkeypatch.setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0")
    record_collectives(0, tmp_path)
    assert os.environ[name] == "/elsewhere/rank"
    assert ("TORCH_FR_DUMP_TEMP_FILE" in os.environ) == (name == "TORCH_FR_DUMP_TEMP_FILE")
    assert os.environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "0"
    assert not list(tmp_path.iterdir())


def test_a_volume_that_cannot_be_written_does_not_stop_the_rank(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    record_collectives(0, tmp_path / "file")
    assert os.environ["TORCH_FR_DUMP_TEMP_FILE"].startswith(str(tmp_path / "file"))


@pytest.mark.parametrize("name", SETTINGS)
def test_the_locked_torch_knows_each_name(name: str) -> None:
    def has(library: Path) -> bool:
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(name.encode() + b"\0") >= 0

    # In a build for the CPU, torch's Python library has what belongs to NCCL.
    assert any(has(LIBRARIES / f"libtorch_{part}.so") for part in ("cpu", "python"))


def test_torchs_own_writer_dumps_there(tmp_path: Path) -> None:
    record_collectives(0, tmp_path)
    subprocess.run([sys.executable, "-c", DUMP, WRITE], check=True)
    assert (tmp_path / "flight-recorder" / "rank-3").read_bytes() == b"recorded"
