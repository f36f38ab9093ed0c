"""Peak memory of a worker of `megatron-prepare`, by format: `python -m bench.prepare --memory 1024`."""

import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import prepare_corpus, prepare_worker


@dataclass(frozen=True)
class Peak:
    """A worker that prepared one corpus."""

    kind: str
    size: int
    """Bytes of the corpus on the disk."""
    peak: int
    """Bytes of memory."""
    cpu: float
    seconds: float


def measure(kinds: Sequence[str], size: int, folder: Path | None, *, by_line: bool) -> Iterator[Peak]:
    """Prepare a corpus of `size` bytes of each kind, one after the other, in a temporary folder of `folder`.

    With `by_line` a line of text is a token, so that a large file takes minutes. Raises SystemExit where the
    disk has no room for it.
    """
    with tempfile.TemporaryDirectory(dir=folder) as name:
        root = Path(name)
        # The corpus, its shards and the dataset that they are joined to.
        if shutil.disk_usage(root).free < 3 * size:
            raise SystemExit(f"{root} has no room for {3 * size >> 20} MiB; set --folder")
        tokenizer = root / "tokenizer"
        (prepare_corpus.write_line_tokenizer if by_line else prepare_corpus.train)(tokenizer)
        for kind in kinds:
            yield _measure(kind, size, root / kind, tokenizer)
            shutil.rmtree(root / kind)


def _measure(kind: str, size: int, root: Path, tokenizer: Path) -> Peak:
    source = prepare_corpus.write(root / "raw", kind, size)
    output = root / "out"
    listed = json.dumps([source | {"output": str(output / "c_text_document")}])
    words = ["--sources", listed, "--output-dir", str(output), "--tokenizer-dir", str(tokenizer)]
    started = time.monotonic()
    [used] = prepare_worker.run([*words, "--append-eod", "--workers", "1"], 1, root / "logs")
    on_disk = sum(path.stat().st_size for path in (root / "raw").iterdir())
    return Peak(kind, on_disk, used.peak, used.cpu, time.monotonic() - started)


def table(peaks: Sequence[Peak], *, by_line: bool) -> list[str]:
    """Lines of Markdown."""
    what = "a token a line" if by_line else "byte-level BPE"
    rows = [f"| source, {what} | size, MiB | peak of a worker, MiB | CPU, s |", "|---|---|---|---|"]
    return rows + [
        f"| {each.kind} | {each.size >> 20:,} | {each.peak >> 20:,} | {each.cpu:.0f} |" for each in peaks
    ]
