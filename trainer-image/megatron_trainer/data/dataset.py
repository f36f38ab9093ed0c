"""A dataset of a source: where its files are, and whether they are complete."""

import json
import shutil
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from megatron_trainer.data.sources import Shard, Source


@dataclass(frozen=True)
class Dataset:
    """A source, its files as they were at the start, and the folder of what is made of it."""

    source: Source
    folder: Path
    divided: Sequence[Shard]
    tokenizer: str
    """Digest of it."""
    files: tuple[str, ...] = ("data.bin", "data.idx")
    """Names of what is made."""

    @property
    def done(self) -> Path:
        """The file that marks the dataset as complete: counts, of documents first, and bytes of its files."""
        return self.folder / "done.json"

    @cached_property
    def work(self) -> Path:
        """The folder of its shards. Shards of another division, as of another release, are in another one."""
        division = json.dumps([[shard.size, shard.start, shard.end] for shard in self.divided])
        return self.folder / f"shards-{zlib.crc32(division.encode()):08x}"

    def counts(self) -> tuple[int, ...] | None:
        """Return what `done` has; None unless all files are there in full length."""
        try:
            counts = [int(count) for count in json.loads(self.done.read_text(encoding="utf-8"))]
            found = [(self.folder / name).stat().st_size for name in self.files]
        except (OSError, ValueError, TypeError):
            return None
        return tuple(counts) if counts[-len(found) :] == found and len(counts) > len(found) else None

    def finish(self, join: Callable[[], None], leftovers: str) -> None:
        """Join the shards by `join` if nobody has, and remove them and what matches `leftovers`.

        Raises what `join` raises, unless another worker has joined them meanwhile.
        """
        if not self.done.is_file():
            try:
                join()
            except FileNotFoundError:
                # Worker 0 of another recipe with this source was faster, and removed the shards.
                if not self.done.is_file():
                    raise
        for shards in self.folder.glob("shards*"):
            shutil.rmtree(shards, ignore_errors=True)
        for leftover in self.folder.glob(leftovers):
            leftover.unlink(missing_ok=True)
