"""`megatron-prepare --chats`, `--images`, `--sound` or `--media`: `data.sources` of a recipe that fine-tunes.

    megatron-prepare --chats '[{"path": "/data/raw/*.jsonl.zst"}]' --output /data/prepared/support_chats \\
        --output-dir /data/prepared --tokenizer-dir /data/model --seq-length 2048 --batch 16 --samples 8000

It is one worker of several. What the run reads is checked against what is prepared. JOB_COMPLETION_INDEX is
the number of this one of the --pods, as Kubernetes sets it in an indexed Job.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from megatron_contract.exit_codes import ExitCode

from megatron_trainer.data.chat_check import ChatRun
from megatron_trainer.data.chats import prepare_chats
from megatron_trainer.data.log import log
from megatron_trainer.data.media import IMAGES, MEDIA, Medium
from megatron_trainer.data.meter import Meter
from megatron_trainer.data.objects import Store
from megatron_trainer.data.packed_samples import PackedRun, pack
from megatron_trainer.data.preparation_error import PreparationError
from megatron_trainer.data.prepare_options import add_index_dir, add_packing
from megatron_trainer.data.sources import Format, Source
from megatron_trainer.data.sources_command import add_store, parse_arguments, serve, worker_of
from megatron_trainer.volume_paths import left_volume


def run(argv: Sequence[str]) -> str:
    """Prepare the chats. Returns a line that describes the end. Raises PreparationError and OSError."""
    args = _parse(argv)
    worker = worker_of(args.pods)
    option = next((name for name in MEDIA if getattr(args, name) is not None), "chats")
    kind: Format = "chat" if option == "chats" else "webdataset"
    store = Store(args.endpoint_url, args.region)
    sources = _sources(getattr(args, option), kind, args.output, store, MEDIA.get(option, IMAGES))
    for path in (args.output_dir, args.tokenizer_dir, args.output):
        if problem := left_volume(path):
            raise PreparationError(ExitCode.BAD_DATA, problem)
    meter = Meter(log)
    if args.progress_port is not None:
        serve(args.progress_port, meter)
    asked = ChatRun(
        args.seq_length,
        args.batch,
        args.samples,
        args.max_epochs,
        args.split,
        args.evaluates,
        args.vocab_size,
    )
    found = prepare_chats(sources, args.output_dir, args.output, args.tokenizer_dir, worker, asked, meter)
    if found is None:
        return "no shard is left to begin; worker 0 joins them"
    what = "chats" if kind == "chat" else "samples"
    text = f"{found.read:,} {what} are prepared, {found.training:,} for training"
    if any(source.is_text for source in sources):
        text = f"{found.read:,} chats and documents are prepared, {found.training:,} samples for training"
    text += f", {found.validation:,} for validation"
    if found.left_out:
        why = "have no answer within" if kind == "chat" else "are longer than"
        text += f"; {found.left_out:,} {why} {args.seq_length:,} tokens and are left out"
    return text if args.packed_folder is None else f"{text}; {_pack(args, meter)}"


def _pack(args: argparse.Namespace, meter: Meter) -> str:
    run = PackedRun.of_command(args, args.output, chats=True)
    with meter.counting() as counted:
        return pack(run, counted)


def _sources(text: str, kind: Format, output: Path, store: Store, media: tuple[Medium, ...]) -> list[Source]:
    try:
        return [
            Source(
                f"data.sources[{number}]",
                str(each["path"]),
                each.get("format", kind),
                output,
                str(each.get("key", "text")),
                documents=each.get("documents"),
                store=store,
                validation=bool(each.get("validation")),
                media=media,
                weight=float(each.get("weight", 1)),
            )
            for number, each in enumerate(json.loads(text))
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PreparationError(
            ExitCode.USAGE, f"--chats, --images, --sound or --media is not a list of sources: {error!r}"
        ) from error


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="megatron-prepare", allow_abbrev=False, exit_on_error=False)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--chats", help="JSON list of sources of chats")
    what.add_argument("--images", help="JSON list of sources of images and text")
    what.add_argument("--sound", help="JSON list of sources of sound and text")
    what.add_argument("--media", help="JSON list of sources of images, sound and text")
    parser.add_argument("--output", type=Path, required=True, help="folder that the run reads")
    parser.add_argument("--output-dir", type=Path, required=True, help="folder of the prepared datasets")
    parser.add_argument("--tokenizer-dir", type=Path, required=True, help="directory with tokenizer.json")
    parser.add_argument("--seq-length", type=int, required=True, help="tokens of a sample")
    parser.add_argument("--batch", type=int, required=True, help="chats that an iteration takes")
    parser.add_argument("--samples", type=int, required=True, help="chats that the run reads for training")
    parser.add_argument("--max-epochs", type=int, default=1, help="the most that a run may repeat a chat")
    parser.add_argument("--split", default="99,1", help="shares of training and validation")
    parser.add_argument("--evaluates", action="store_true", help="the run reads chats for validation")
    parser.add_argument("--vocab-size", type=int, help="vocabulary of the model; all ids must be below it")
    parser.add_argument("--progress-port", type=int, help="serve /progress there")
    add_index_dir(parser)
    add_packing(parser)
    add_store(parser)
    parser.add_argument("--pods", type=int, default=1, help="number of pods that share the work")
    return parse_arguments(parser, argv, at_least_one=("pods", "seq_length", "batch", "samples"))
