"""`megatron-samples`: prints which documents an iteration of a run has read.

    megatron-samples /checkpoints/llama3-8b                             the iterations, and what is wrong
    megatron-samples /checkpoints/llama3-8b --iteration 1200            documents of an iteration
    megatron-samples /checkpoints/llama3-8b --iteration 1200 --text 80  the beginning of each as text

Needs the volume of the checkpoints, where the ranks record their samples, and for the text that of the data
and the tokenizer.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Final, NoReturn

from megatron_contract.environment import SAMPLES_DIR
from megatron_contract.wire import camel_case

from megatron_trainer.bridge.chat_tokens import ids_of
from megatron_trainer.data.sample_documents import Part, SampleIndex, SampleIndexError, open_index
from megatron_trainer.data.sample_history import SampleHistory
from megatron_trainer.telemetry.sample_log import TRAINED

_LINES: Final = ".jsonl"
FAILED, REFUSED = 1, 2
"""Exit codes: samples were repeated or left out; there is no such iteration, or its files are missing."""
_MOST_DOCUMENT_TOKENS: Final = 1 << 20
"""Tokens of a document that are read for its text."""


def main() -> NoReturn:
    """Print what the command line asks for, and exit."""
    sys.exit(run(sys.argv[1:]))


def run(argv: Sequence[str]) -> int:
    """Print what the arguments ask for. Returns 0, FAILED or REFUSED."""
    arguments = _parser().parse_args(argv)
    folder: Path = arguments.save / SAMPLES_DIR
    try:
        if not folder.is_dir():
            raise SampleIndexError(
                f"{arguments.save} has no folder {SAMPLES_DIR}: name the directory of a run's checkpoints; "
                "releases before 0.3.0 recorded no samples"
            )
        history = SampleHistory(folder)
        if arguments.iteration is None:
            return _summarise(history, arguments.json)
        _show(history, arguments)
    except SampleIndexError as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(f"{error.strerror}: {error.filename}")
    return 0


def _refuse(text: str) -> int:
    print(f"megatron-samples: error: {text}", file=sys.stderr)
    return REFUSED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="megatron-samples",
        description="Print which documents an iteration has read. Without --iteration: the iterations of the "
        "run, and whether any sample was repeated or left out, which ends with 1.",
        allow_abbrev=False,
    )
    parser.add_argument("save", type=Path, help="directory of the run's checkpoints")
    parser.add_argument("--iteration", type=int, help="iteration of the run, from 1")
    parser.add_argument(
        "--generation", type=int, help="generation that did it (default: the one whose work was kept)"
    )
    parser.add_argument(
        "--text", type=int, default=0, metavar="CHARACTERS", help="so many characters of each document"
    )
    parser.add_argument(
        "--tokenizer", type=Path, help="folder of the tokenizer (default: that of the dataset)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _summarise(history: SampleHistory, as_json: bool) -> int:
    kept, problems = list(history.kept()), history.problems()
    if not kept:
        raise SampleIndexError("no iteration is recorded yet")
    if as_json:
        generations = [
            {
                "generation": each.start.generation,
                "firstIteration": each.first,
                "lastIteration": each.last,
                "dataParallelRanks": each.start.ranks,
                "dataset": each.start.dataset,
            }
            for each in kept
        ]
        print(json.dumps({"generations": generations, "problems": problems}))
        return FAILED if problems else 0
    for each in kept:
        ranks = f"{each.start.ranks} data-parallel rank{'s' if each.start.ranks > 1 else ''}"
        print(f"iterations {each.first} to {each.last}: generation {each.start.generation}, {ranks}")
    order = "no sample is repeated"
    if all(each.start.dataset.get("order") == "sequential" for each in kept):
        order += " or left out"
    print("\n".join(problems) if problems else order)
    return FAILED if problems else 0


def _show(history: SampleHistory, arguments: argparse.Namespace) -> None:
    iteration: int = arguments.iteration
    generation = arguments.generation or history.generation_of(iteration)
    if generation is None:
        last = history.last_iteration
        raise SampleIndexError(
            f"--iteration {iteration}: the record ends with iteration {last}; it is written with each "
            "checkpoint, and every ten minutes"
        )
    read = history.at(iteration, generation)
    if not read:
        raise SampleIndexError(f"generation {generation} has recorded nothing of iteration {iteration}")
    start = history.starts[generation]
    index = open_index(start.dataset, arguments.save)
    text = _texts(index, arguments)
    samples = []
    for rank, readings in read.items():
        numbers = readings.numbers_of(iteration, iteration)
        places = readings.places_of(iteration, iteration)
        for number, place in zip(numbers, places, strict=True):
            parts = [] if index is None else index.parts(place)
            samples.append(
                {
                    "dataParallelRank": rank,
                    "sample": number,
                    "documents": [_shown(part) | text(part) for part in parts],
                }
            )
    states = sorted({each.state for each in read.values()})
    found = {
        "iteration": iteration,
        "generation": generation,
        "state": states[0] if len(states) == 1 else TRAINED,
        "samples": samples,
    }
    print(
        json.dumps(found)
        if arguments.json
        else _as_text(found, sorted(set(range(start.ranks)) - read.keys()))
    )


def _shown(part: Part) -> dict[str, Any]:
    return {camel_case(name): value for name, value in asdict(part).items() if value is not None}


def _as_text(found: dict[str, Any], missing: Sequence[int]) -> str:
    state = "" if found["state"] == TRAINED else f", {found['state']}"
    lines = [f"iteration {found['iteration']}, generation {found['generation']}{state}"]
    for sample in found["samples"]:
        lines.append(f"data-parallel rank {sample['dataParallelRank']}, sample {sample['sample']}")
        for part in sample["documents"]:
            what = f" {part.get('key') or part['number']}"
            if part["path"].endswith(_LINES):
                what = f":{part['number'] + 1}"
            of = ""
            if "firstToken" in part:
                last = part["firstToken"] + part["tokens"] - 1 if "tokens" in part else "its end"
                of = f", tokens {part['firstToken']} to {last}"
            lines.append(f"  {part['path']}{what}{of}")
            if "text" in part:
                lines.append(f"    {json.dumps(part['text'], ensure_ascii=False)}")
    if missing:
        lines.append(f"nothing is recorded of data-parallel ranks {', '.join(map(str, missing))}")
    return "\n".join(lines)


def _texts(index: SampleIndex | None, arguments: argparse.Namespace) -> Any:
    """Return what adds the beginning of a part as text to it."""
    length: int = arguments.text
    if length <= 0 or index is None:
        return lambda _: {}

    @cache
    def documents(path: str) -> Any:
        from megatron.core.datasets.indexed_dataset import IndexedDataset  # imports torch

        return IndexedDataset(path)

    @cache
    def lines(path: str) -> list[bytes]:
        return Path(path).read_bytes().splitlines()

    @cache
    def tokenizer() -> Any:
        from tokenizers import Tokenizer

        folder = arguments.tokenizer or index.tokenizer
        if folder is None:
            raise SampleIndexError("the dataset names no tokenizer; set --tokenizer")
        try:
            return Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        except Exception as error:  # the library raises plain Exception
            raise SampleIndexError(f"{folder}/tokenizer.json: {error}; set --tokenizer") from error

    def add(part: Part) -> dict[str, str]:
        if part.first_token is not None:
            # A character has at most a few tokens, and most tokens several characters.
            tokens = min(part.tokens or _MOST_DOCUMENT_TOKENS, 4 * length)
            size = int(documents(part.path).sequence_lengths[part.number]) - part.first_token
            ids = documents(part.path).get(part.number, offset=part.first_token, length=min(tokens, size))
            return {"text": tokenizer().decode(ids.tolist(), skip_special_tokens=False)[:length]}
        if part.path.endswith(_LINES):
            line = lines(part.path)[part.number].decode(errors="replace")
            if (ids := _ids_of(line)) is not None:
                line = tokenizer().decode(ids[: 4 * length], skip_special_tokens=False)
            return {"text": line[:length]}
        return {}

    return add


def _ids_of(line: str) -> list[int] | None:
    """The token ids of a document among chats; None for a line of text."""
    try:
        return ids_of(json.loads(line))
    except ValueError:
        return None


if __name__ == "__main__":
    main()
