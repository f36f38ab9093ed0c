"""Tokens per second of megatron-prepare beside Megatron's own way, on the same documents and tokenizer.

    python -m bench.prepare --mebibytes 256 --rounds 3
    python -m bench.prepare --tokenizer /models/Llama-3.1-8B
    python -m bench.prepare --memory 1024 --formats parquet zst --by-line

Megatron's tools/preprocess_data.py is not in its wheel; `_megatron` does what it does: a pool of processes
parses and tokenizes lines, and one process writes with IndexedDatasetBuilder. The documents are the sources
of Python's standard library. Every measurement is a process tree of its own, rounds are interleaved, and the
median counts. The time of `_megatron` is without its imports, the other's has them. Tokens for each second of
processor time, over all processes, are what to compare on a machine that does other things too. All write the
same bytes, which is checked. The tokenizer is of the kind of GPT-2's, trained on the documents, unless
--tokenizer names the folder of another one.

With --memory the peak of a worker is measured for each format instead. `--write` puts either table into
docs/data.md.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import prepare_corpus, prepare_memory, prepare_worker
from bench.prepare_report import MEMORY, PAGE, SPEED, Rate, page, rates_table, section

_CHUNK = 32
_WAYS = ("megatron", "ours")
_COUNTS = (1, 2)
_tokenizer: Any = None


def _initialize(folder: str) -> None:
    global _tokenizer
    from megatron.core.tokenizers.text.libraries.huggingface_tokenizer import HuggingFaceTokenizer

    _tokenizer = HuggingFaceTokenizer(folder)


def _encode(line: str) -> list[int]:
    ids: list[int] = _tokenizer.text_to_ids(json.loads(line)["text"])
    ids.append(_tokenizer.eos_id)
    return ids


def _processor_seconds() -> float:
    """Of this process and of those of its children that have ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _megatron(corpus: Path, tokenizer: Path, output: Path, workers: int) -> None:
    import torch
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

    output.mkdir(parents=True)
    _initialize(str(tokenizer))
    before = _processor_seconds()
    builder = IndexedDatasetBuilder(
        str(output / "data.bin"), dtype=DType.optimal_dtype(_tokenizer.vocab_size)
    )
    started = time.monotonic()
    tokens = 0
    with (
        multiprocessing.get_context("fork").Pool(workers) as pool,
        corpus.open(encoding="utf-8") as stream,
    ):
        for ids in pool.imap(_encode, stream, _CHUNK):
            builder.add_document(torch.tensor(ids), [len(ids)])
            tokens += len(ids)
        pool.close()
        pool.join()
    builder.finalize(str(output / "data.idx"))
    print(json.dumps([tokens, time.monotonic() - started, _processor_seconds() - before, []]))


def _ours(corpus: Path, tokenizer: Path, output: Path, workers: int) -> None:
    source = [{"path": str(corpus), "format": "jsonl", "output": str(output / "c_text_document")}]
    words = ["--sources", json.dumps(source), "--output-dir", str(output), "--tokenizer-dir", str(tokenizer)]
    started = time.monotonic()
    used = prepare_worker.run([*words, "--append-eod", "--workers", "1"], workers, output / "logs")
    seconds = time.monotonic() - started
    [done] = output.glob("objects/*/done.json")
    shutil.copytree(done.parent, output, dirs_exist_ok=True)
    tokens = json.loads(done.read_text())[1]
    print(json.dumps([tokens, seconds, sum(each.cpu for each in used), [each.peak for each in used]]))


def _measure(way: str, folder: Path, workers: int) -> Rate:
    output = folder / f"{way}-{workers}"
    shutil.rmtree(output, ignore_errors=True)
    words = [sys.executable, "-W", "ignore", "-m", "bench.prepare", "--run", way, "--workers", str(workers)]
    done = subprocess.run(
        [*words, "--folder", str(folder), "--output", str(output)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=os.environ | {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"},
    )
    tokens, seconds, processor, peaks = json.loads(done.stdout.splitlines()[-1])
    return Rate(tokens / seconds, tokens / processor, max(peaks, default=None))


def _check_equal(folder: Path) -> None:
    for name in ("data.bin", "data.idx"):
        files = [(folder / f"{way}-{count}" / name) for way in _WAYS for count in _COUNTS]
        if len({file.read_bytes() for file in files}) != 1:
            raise SystemExit(f"{name} differs between the ways")


def compare(
    size: int, rounds: int, parent: Path | None, tokenizer: Path | None
) -> dict[tuple[str, int], list[Rate]]:
    """Measure both ways with 1 and 2 workers in a temporary folder of `parent`, in turn.

    `tokenizer` is its folder; without, one is trained. Returns the rates by way and number of workers. Raises
    SystemExit if their files differ.
    """
    with tempfile.TemporaryDirectory(dir=parent) as name:
        folder = Path(name)
        prepare_corpus.write(folder / "raw", "jsonl", size)
        if tokenizer is None:
            prepare_corpus.train(folder / "tokenizer")
        else:
            shutil.copytree(tokenizer, folder / "tokenizer")
        rates: dict[tuple[str, int], list[Rate]] = {}
        for _ in range(rounds):
            for count in _COUNTS:
                for way in _WAYS:
                    rates.setdefault((way, count), []).append(_measure(way, folder, count))
        _check_equal(folder)
    return rates


def main() -> None:
    """Compare, measure memory, or measure one way where called with --run."""
    parser = argparse.ArgumentParser(
        prog="bench.prepare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mebibytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", type=int, metavar="MEBIBYTES", help="measure memory with so much text")
    parser.add_argument("--formats", nargs="+", choices=prepare_corpus.FORMATS, default=["jsonl"])
    parser.add_argument("--by-line", action="store_true", help="a token a line, for large files")
    parser.add_argument("--tokenizer", type=Path, help="folder of a tokenizer; default: one is trained")
    parser.add_argument("--folder", type=Path, help="where files are for the time of the run (TMPDIR)")
    parser.add_argument("--write", action="store_true", help=f"write the table to docs/{PAGE.name}")
    parser.add_argument("--run", choices=_WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run is not None:
        way = _megatron if args.run == "megatron" else _ours
        way(args.folder / "raw" / "a.jsonl", args.folder / "tokenizer", args.output, args.workers)
        return
    if args.memory is not None:
        name = MEMORY
        kinds = " ".join(args.formats)
        asked = f"--memory {args.memory} --formats {kinds}{' --by-line' if args.by_line else ''}"
        peaks = prepare_memory.measure(args.formats, args.memory << 20, args.folder, by_line=args.by_line)
        lines = prepare_memory.table(list(peaks), by_line=args.by_line)
    else:
        name = SPEED
        asked = f"--mebibytes {args.mebibytes} --rounds {args.rounds}"
        asked += f" --tokenizer {args.tokenizer}" if args.tokenizer else ""
        lines = rates_table(compare(args.mebibytes << 20, args.rounds, args.folder, args.tokenizer))
    text = section(f'make bench-prepare BENCH="{asked}"', lines)
    print(text)
    if args.write:
        PAGE.write_text(page(PAGE.read_text(), name, text))


if __name__ == "__main__":
    main()
