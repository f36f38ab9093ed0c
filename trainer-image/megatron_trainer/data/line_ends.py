"""Writes where the lines of files to fine-tune on end, which rank 0 would look for otherwise."""

import contextlib
from pathlib import Path

import numpy as np

from megatron_trainer.bridge import line_index
from megatron_trainer.data import shards
from megatron_trainer.data.log import log


def write_line_ends(path: Path, folder: Path | None = None) -> None:
    """Write where the lines of a file end, in `folder` or beside it, unless that is there.

    Rank 0 finds them where they cannot be written, as in a folder of another user.
    """
    target = line_index.file_of_ends(path, folder)
    if not path.stat().st_size or line_index.read_ends(path, target) is not None:
        return
    part = shards.temporary(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as stream:
            np.save(stream, line_index.find_ends(path), allow_pickle=False)
            shards.flush(stream)
        part.replace(target)
    except OSError as error:
        log(f"the places where the lines of {path} end are not written: {error}")
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
