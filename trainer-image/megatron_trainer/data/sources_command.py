"""`megatron-prepare --sources`: prepares the entries of `data.sources`, as one worker of several.

    megatron-prepare \\
        --sources '[{"path": "/data/raw/*.jsonl.zst", "format": "jsonl", "output": "/data/prepared/a"}]' \\
        --output-dir /data/prepared --tokenizer-dir /data/tokenizer --append-eod --pods 2

With Megatron's flags of a run after `--`, what it reads is checked against what is prepared (check.py).
JOB_COMPLETION_INDEX is the number of this one of the --pods, as Kubernetes sets it in an indexed Job.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from megatron_contract.exit_codes import ExitCode
from megatron_contract.preparation import PreparationResult

from megatron_trainer.data import megatron_tokenizer
from megatron_trainer.data.blend import Worker, prepare
from megatron_trainer.data.check import parse_needs
from megatron_trainer.data.index_process import build_index, use_threads
from megatron_trainer.data.log import log
from megatron_trainer.data.meter import Meter
from megatron_trainer.data.objects import Store
from megatron_trainer.data.preparation_error import PreparationError
from megatron_trainer.data.prepare_options import add_bridge_run, add_index_dir, split_flags
from megatron_trainer.data.sources import parse_sources
from megatron_trainer.telemetry.server import ProgressServer
from megatron_trainer.volume_paths import left_volume

_INDEX = "JOB_COMPLETION_INDEX"


def run(argv: Sequence[str]) -> tuple[str, PreparationResult | None]:
    """Prepare the sources. Returns a line that describes the end, and the result of worker 0.

    Raises PreparationError and OSError.
    """
    own, megatron_flags = split_flags(argv)
    args = _parse(own)
    use_threads(args.workers)
    worker = worker_of(args.pods)
    sources = parse_sources(args.sources, Store(args.endpoint_url, args.region))
    for path in (args.output_dir, args.tokenizer_dir, *(source.output for source in sources)):
        if problem := left_volume(path):
            raise PreparationError(ExitCode.BAD_DATA, problem)
    needs = parse_needs(megatron_flags, args.vocab_size, args.max_epochs)
    meter = Meter(log)
    if args.progress_port is not None:
        serve(args.progress_port, meter)
    megatron = None
    if megatron_tokenizer.is_asked_for(megatron_flags):
        megatron = megatron_tokenizer.load(
            args.tokenizer_dir, megatron_flags, append_eod=args.append_eod, threads=args.workers
        )
    result = prepare(
        sources,
        args.output_dir,
        args.tokenizer_dir,
        worker,
        append_eod=args.append_eod,
        needs=needs,
        megatron=megatron,
        meter=meter,
        threads=args.workers,
        trust_remote_code="--trust-remote-code" in megatron_flags,
    )
    if result is None:
        return "no shard is left to begin; worker 0 joins them", None
    text = f"{len(sources)} sources are prepared: {result.documents} documents, {result.tokens} tokens"
    if args.index or args.index_dir is not None:
        text += f"; {build_index(args.index_of or megatron_flags, args.index_dir)}"
    return text, result


def serve(port: int, meter: Meter) -> None:
    """Serve the progress, without which the preparation goes on."""
    try:
        ProgressServer(port, meter.report).start()
    except OSError as error:
        log(f"the progress is not served at port {port}: {error}")


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="megatron-prepare", allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--sources", required=True, help="JSON list of sources")
    parser.add_argument("--output-dir", type=Path, required=True, help="folder of the prepared datasets")
    parser.add_argument(
        "--tokenizer-dir", type=Path, required=True, help="directory with tokenizer.json, or file"
    )
    parser.add_argument("--append-eod", action="store_true", help="append the end-of-text token")
    parser.add_argument("--vocab-size", type=int, help="vocabulary of the model; all ids must be below it")
    parser.add_argument("--max-epochs", type=int, default=1, help="the most that a run may repeat a source")
    parser.add_argument("--index", action="store_true", help="build the index of the run's samples too")
    add_index_dir(parser)
    add_bridge_run(parser)
    parser.add_argument("--progress-port", type=int, help="serve /progress there")
    add_store(parser)
    parser.add_argument("--pods", type=int, default=1, help="number of pods that share the work")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="threads")
    return parse_arguments(parser, argv, at_least_one=("pods", "workers"))


def add_store(parser: argparse.ArgumentParser) -> None:
    """Add the options of the store with the objects of paths that begin with s3://."""
    parser.add_argument("--endpoint-url", help="URL of the object store; default AWS")
    parser.add_argument("--region", help="region of the object store")


def parse_arguments(
    parser: argparse.ArgumentParser, argv: Sequence[str], *, at_least_one: Sequence[str]
) -> argparse.Namespace:
    """Parse the arguments of a worker. `at_least_one` names those that must be 1 or more, where they are set.

    Raises PreparationError.
    """
    try:
        args, unknown = parser.parse_known_args(argv)
    except argparse.ArgumentError as error:
        raise PreparationError(ExitCode.USAGE, str(error)) from error
    if unknown:
        raise PreparationError(ExitCode.USAGE, f"unknown arguments: {' '.join(unknown)}")
    for name in at_least_one:
        value = getattr(args, name)
        if value is not None and value < 1:
            flag = name.replace("_", "-")
            raise PreparationError(ExitCode.USAGE, f"--{flag} is {value}; set 1 or more")
    return args


def worker_of(count: int) -> Worker:
    """Return which of `count` pods this is. Raises PreparationError with USAGE."""
    text = os.environ.get(_INDEX, "0")
    if not text.isdecimal() or int(text) >= count:
        raise PreparationError(ExitCode.USAGE, f"{_INDEX} is {text!r}; use 0 to {count - 1} for these --pods")
    return Worker(int(text), count)
