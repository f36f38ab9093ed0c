"""Takes the index of a run's samples from the data volume, which was built there before the run.

Megatron writes beside the index what is missing, and trainers may not write to the data volume, so the files
are copied to the run's own folder.
"""

import contextlib
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from megatron_contract.environment import DATA_DIR, ENV_RUN_ID
from megatron_contract.preparation import index_folder

from megatron_trainer.volume_paths import left_volume

INDEX_FILE: Final = re.compile(r"[0-9a-f]{8,128}-[A-Za-z]+-[a-z]+-[a-z_]+\.(npy|txt)")
"""Names of the files of an index."""
PACKED_FOLDER: Final = re.compile(r"[0-9a-f]{16}")
"""Names of folders of packed samples, which are a digest of what these depend on."""
PACKED_FILE: Final = re.compile(
    r"(training|validation)\.idx\.parquet|\.(training|validation)\.idx\.parquet\.\d+"
)
"""Names of files there; of the latter kind are those that are not finished, with the process's number."""
UNFINISHED: Final = ".unfinished-"
"""How the name of the folder begins in which an index is built, beside the one that is complete."""


def folder_of(cache: Path) -> Path:
    """Return the folder on the data volume for this run, whose index is in `cache`, below its own folder."""
    return Path(DATA_DIR) / index_folder(cache.parent.name, os.environ.get(ENV_RUN_ID, ""))


@contextlib.contextmanager
def reporting_built(cache: Path | None) -> Iterator[None]:
    """On rank 0: print how many files of the index in `cache` it builds meanwhile; None for no index."""
    if cache is None:
        yield
        return
    before = _files(cache)
    started = time.monotonic()
    yield
    if built := len(_files(cache) - before):
        seconds = time.monotonic() - started
        print(
            f"rank 0 has built {built} files of the index of the samples in {cache} in {seconds:.1f} s, while"
            " the others waited: no Job had built them",
            flush=True,
        )


def _files(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir()} if cache.is_dir() else set()


def take(cache: Path, folder: Path | None = None) -> int:
    """Copy to `cache` what is missing or torn there of the run's index. Returns the number of copied files.

    Megatron unpickles what an index names as objects: a file with such is left where it is. Errors are not
    raised, as Megatron builds what is missing.
    """
    _remove_torn(cache)
    folder = folder or folder_of(cache)
    copied = 0
    try:
        if not folder.is_dir() or left_volume(folder) is not None:
            return 0
        cache.mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.iterdir()):
            target = cache / path.name
            if (
                not INDEX_FILE.fullmatch(path.name)
                or path.is_symlink()
                or not path.is_file()
                or target.exists()
            ):
                continue
            part = cache / f".{path.name}.{socket.gethostname()}.{os.getpid()}"
            try:
                shutil.copyfile(path, part)
                if path.suffix == ".npy":
                    np.load(part, mmap_mode="r", allow_pickle=False)
                part.replace(target)
                copied += 1
            finally:
                part.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        print(f"the index in {folder} is not used: {error}", flush=True)
    return copied


def _remove_torn(cache: Path) -> None:
    """Remove arrays that a killed rank 0 has half written: Megatron takes whatever is there for a whole one.

    A file that cannot be read stays, as an error of the volume is no damage: Megatron meets it itself.
    """
    for name in sorted(_files(cache)):
        path = cache / name
        if path.suffix != ".npy" or not INDEX_FILE.fullmatch(name):
            continue
        with contextlib.suppress(OSError):
            try:
                np.load(path, mmap_mode="r", allow_pickle=False)
            except (EOFError, ValueError) as error:
                path.unlink()
                print(f"{path} is not whole and is built again: {error}", flush=True)
