"""`megatron-prepare --check-blend` or `--check-root`: checks what exists already against a run.

    megatron-prepare --check-blend '["/data/web", "/data/code"]' --known-dir /data/prepared/checked \\
        --vocab-size 32000 --index -- --seq-length 4096 --train-iters 1000 --global-batch-size 256 ...
    megatron-prepare --check-root /data/answers --lines chat --tokenizer-dir /data/model --batch 16 \\
        --samples 8000 --seq-length 4096

The former are datasets of Megatron (`data.blend`), with its flags of the run after `--`; the latter is a
folder of samples to fine-tune on, or with `--lines latents` of a diffusion model (`data.datasetRoot`).
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from megatron_contract.exit_codes import ExitCode

from megatron_trainer.data.check_blend import check_blend
from megatron_trainer.data.check_meter import CheckMeter
from megatron_trainer.data.index_process import build_index
from megatron_trainer.data.packed_samples import PackedRun, pack
from megatron_trainer.data.preparation_error import PreparationError
from megatron_trainer.data.prepare_options import add_bridge_run, add_index_dir, add_packing, split_flags
from megatron_trainer.data.sources_command import parse_arguments

QUESTIONS: Final = "questionAndAnswer"
CHAT: Final = "chat"
LINES: Final = (QUESTIONS, CHAT, "latents")


def run(argv: Sequence[str]) -> str:
    """Check what a run reads. Returns a line that describes the end. Raises PreparationError and OSError."""
    own, megatron_flags = split_flags(argv)
    args = _parse(own)
    if args.packed_folder is not None and args.seq_length is None:
        raise PreparationError(ExitCode.USAGE, "--packed-folder needs --seq-length, the tokens of a sequence")
    meter = CheckMeter()
    if args.progress_port is not None:
        meter.serve(args.progress_port)
    if args.check_root is not None:
        # Imports torch and Megatron-Bridge.
        from megatron_trainer.data.check_root import Root, check_root

        root = Root(
            args.check_root,
            args.lines,
            args.tokenizer_dir,
            args.batch,
            args.samples,
            args.max_epochs,
            args.evaluates,
            args.vocab_size,
            args.lines_dir,
            args.seq_length,
        )
        text = check_root(root, meter)
        return text if args.packed_folder is None else f"{text}; {_pack(args, meter)}"
    prefixes = _prefixes(args.check_blend)
    text = check_blend(prefixes, megatron_flags, args.vocab_size, args.max_epochs, args.known_dir, meter)
    if args.index or args.index_dir is not None:
        text += f"; {build_index(args.index_of or megatron_flags, args.index_dir)}"
    return text


def _pack(args: argparse.Namespace, meter: CheckMeter) -> str:
    if args.tokenizer_dir is None or not args.tokenizer_dir.exists():
        return "warning: the tokenizer is not mounted here, and rank 0 will pack the samples"
    run = PackedRun.of_command(args, args.check_root, chats=args.lines == CHAT)
    return pack(run, meter)


def _prefixes(text: str) -> list[Path]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not found or not all(isinstance(each, str) for each in found):
        raise PreparationError(ExitCode.USAGE, "--check-blend is not a JSON list of datasets' prefixes")
    return list(map(Path, found))


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="megatron-prepare", allow_abbrev=False, exit_on_error=False)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check-blend", help="JSON list of prefixes of datasets of Megatron")
    what.add_argument("--check-root", type=Path, help="folder of samples to fine-tune on, or of latents")
    parser.add_argument("--known-dir", type=Path, default=Path(), help="folder for what is known of datasets")
    parser.add_argument("--lines", choices=LINES, default=QUESTIONS, help="what --check-root has")
    parser.add_argument("--tokenizer-dir", type=Path, help="directory of the tokenizer")
    parser.add_argument("--batch", type=int, default=1, help="samples that an iteration takes")
    parser.add_argument("--samples", type=int, default=1, help="samples that the run reads for training")
    parser.add_argument("--evaluates", action="store_true", help="the run reads samples for validation")
    parser.add_argument("--vocab-size", type=int, help="vocabulary of the model; all ids must be below it")
    parser.add_argument("--max-epochs", type=int, help="how often a run may read a dataset (default: any)")
    parser.add_argument("--index", action="store_true", help="build the index of the run's samples too")
    parser.add_argument("--progress-port", type=int, help="serve /progress there")
    text = "write there where the lines of --check-root end, for rank 0"
    parser.add_argument("--lines-dir", type=Path, help=text)
    parser.add_argument("--seq-length", type=int, help="tokens of a sample, or of a packed sequence")
    add_index_dir(parser)
    add_packing(parser)
    add_bridge_run(parser)
    return parse_arguments(parser, argv, at_least_one=("batch", "samples", "max_epochs", "seq_length"))
