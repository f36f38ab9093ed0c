"""Tokens per second of megatron-prepare beside Megatron's own way, on the same documents and tokenizer.

    python -m bench.prepare --mebibytes 32 --rounds 3

Megatron's tools/preprocess_data.py is not in its wheel; `_megatron` does what it does: a pool of processes
parses and tokenizes lines, and one process writes with IndexedDatasetBuilder. The documents are the sources
of Python's standard library. Every measurement is a process tree of its own, rounds are interleaved, and the
median counts. The time of `_megatron` is without its imports, the other's has them. Tokens for each second of
processor time, over all processes, are what to compare on a machine that does other things too. All write the
same bytes, which is checked.
"""

import argparse
import json
import multiprocessing
import os
import platform
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

_VOCABULARY = 8192
_CHUNK = 32
_tokenizer: Any = None


def _corpus(path: Path, size: int) -> None:
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[a-z]*/*.py"))
    texts = [text for file in files if (text := file.read_text(encoding="utf-8", errors="ignore")).strip()]
    written = number = 0
    with path.open("w", encoding="utf-8") as stream:
        while written < size:
            written += stream.write(json.dumps({"text": texts[number % len(texts)]}) + "\n")
            number += 1


def _train(corpus: Path, folder: Path) -> None:
    from megatron_trainer.data import tokenizer

    with corpus.open(encoding="utf-8") as stream:
        texts = [json.loads(line)["text"] for line, _ in zip(stream, range(300), strict=False)]
    tokenizer.train(iter(texts), _VOCABULARY, folder)


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
    builder = IndexedDatasetBuilder(str(output / "data.bin"), dtype=DType.optimal_dtype(_VOCABULARY))
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
    print(json.dumps([tokens, time.monotonic() - started, _processor_seconds() - before]))


def _ours(corpus: Path, tokenizer: Path, output: Path, workers: int) -> None:
    source = [{"path": str(corpus), "format": "jsonl", "output": str(output / "c_text_document")}]
    words = [sys.executable, "-m", "megatron_trainer.data.prepare", "--sources", json.dumps(source)]
    words += ["--output-dir", str(output), "--tokenizer-dir", str(tokenizer), "--append-eod"]
    words += ["--pods", str(workers), "--workers", "1"]
    started, before = time.monotonic(), _processor_seconds()
    environment = os.environ | {"MEGATRON_TERMINATION_LOG": str(output.with_suffix(".end"))}
    running = [
        subprocess.Popen(
            words, env=environment | {"JOB_COMPLETION_INDEX": str(index)}, stdout=subprocess.DEVNULL
        )
        for index in range(workers)
    ]
    codes = [process.wait() for process in running]
    if any(codes):
        raise SystemExit(f"megatron-prepare ended with {codes}")
    times = [time.monotonic() - started, _processor_seconds() - before]
    [done] = output.glob("objects/*/done.json")
    shutil.copytree(done.parent, output, dirs_exist_ok=True)
    print(json.dumps([json.loads(done.read_text())[1], *times]))


def _measure(way: str, folder: Path, workers: int) -> tuple[float, float]:
    """Tokens for each second, and for each second of processor time."""
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
    tokens, seconds, processor = json.loads(done.stdout.splitlines()[-1])
    return tokens / seconds, tokens / processor


def _check_equal(folder: Path) -> None:
    for name in ("data.bin", "data.idx"):
        files = [(folder / f"{way}-{count}" / name) for way in ("megatron", "ours") for count in (1, 2)]
        if len({file.read_bytes() for file in files}) != 1:
            raise SystemExit(f"{name} differs between the ways")


def compare(size: int, rounds: int) -> None:
    """Measure both ways with 1 and 2 workers, and print a table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _corpus(folder / "corpus.jsonl", size)
        _train(folder / "corpus.jsonl", folder / "tokenizer")
        rates: dict[tuple[str, int], list[tuple[float, float]]] = {}
        for _ in range(rounds):
            for count in (1, 2):
                for way in ("megatron", "ours"):
                    rates.setdefault((way, count), []).append(_measure(way, folder, count))
        _check_equal(folder)
    cores, load = os.cpu_count(), os.getloadavg()[0]
    print(
        f"{platform.machine()}, {cores} cores, load {load:.1f} at the end, Python {platform.python_version()}"
    )
    print(f"{size >> 20} MiB of JSON lines, {rounds} rounds, median (lowest to highest)")
    for number, unit in enumerate(("tokens/s", "tokens/s of processor time")):
        print(f"\n{unit}\n{'workers':>7}  {'preprocess_data':>32}  {'megatron-prepare':>32}  times")
        for count in (1, 2):
            cells = [[rate[number] for rate in rates[way, count]] for way in ("megatron", "ours")]
            middle = [statistics.median(cell) for cell in cells]
            shown = [
                f"{value:,.0f} ({min(cell):,.0f} to {max(cell):,.0f})"
                for value, cell in zip(middle, cells, strict=True)
            ]
            print(f"{count:>7}  {shown[0]:>32}  {shown[1]:>32}  {middle[1] / middle[0]:.2f}")


def main() -> None:
    """Compare, or measure one way where called with --run."""
    parser = argparse.ArgumentParser(description="Compare megatron-prepare with Megatron's preprocessing.")
    parser.add_argument("--mebibytes", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--run", choices=("megatron", "ours"), help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run is None:
        compare(args.mebibytes << 20, args.rounds)
        return
    way = _megatron if args.run == "megatron" else _ours
    way(args.folder / "corpus.jsonl", args.folder / "tokenizer", args.output, args.workers)


if __name__ == "__main__":
    main()
