"""Packs the samples of a file as Megatron-Bridge does, and keeps which of its lines are in each sequence.

Bridge 0.6.2 holds all samples in memory as lists of Python numbers. Here their tokens are in temporary files
beside the result, and memory has of each its length, its place, and its part of Bridge's list of sequences.
The result is Bridge's, number by number, but for a sample that is longer than a
sequence: Bridge leaves it out, and here its end is cut off, as it is where samples are padded.
"""

import os
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import batched
from pathlib import Path
from typing import Any, Final

import numpy as np
from megatron_contract.exit_codes import ExitCode

from megatron_trainer.worker.failures import RankError

COLUMN: Final = "lines"
"""Column of a packed file: of each sequence the numbers of its lines in the file of samples, from 0."""
_ALGORITHM: Final = "first_fit_shuffle"
"""Bridge's default."""
_GROUP_TOKENS: Final = 1 << 19
"""Tokens of a row group, about, which the loader reads whole for each sequence that it takes."""

type Numbers = np.ndarray[Any, np.dtype[Any]]


def install() -> None:
    """Replace Bridge's packing of a file; call it once in a process."""
    from megatron.bridge.data.packing import offline

    offline._materialize_dataset_items = _one_by_one
    offline.prepare_gpt_sft_packed_data = _called_by_bridge


def read(path: Path) -> list[list[int]]:
    """Return the lines of each sequence of a packed file.

    Raises OSError, or ValueError for a damaged file.
    """
    import pyarrow.parquet as pq

    found: list[list[int]] = pq.read_table(path, columns=[COLUMN]).column(COLUMN).to_pylist()
    return found


def pack_file(
    source: Path,
    target: Path,
    seq_length: int,
    tokenizer: Any,
    seed: int,
    dataset_kwargs: dict[str, Any],
    dataset_builder: Callable[..., Any],
) -> None:
    """Pack the samples of a file to sequences of `seq_length` tokens; the result appears when it is whole.

    `tokenizer`, `dataset_kwargs` and `dataset_builder` are as Bridge gives them to its own function. Raises
    OSError, and RankError with BAD_DATA for a file without samples, or with one that Bridge cannot read.
    """
    from megatron.bridge.data.packing.algorithms import create_packing_strategy
    from megatron.bridge.data.packing.offline import tokenize_dataset

    samples = tokenize_dataset(
        source, tokenizer, seq_length, seed, dataset_kwargs, dataset_builder=dataset_builder
    )
    spool = _Spool(target.parent, samples, seq_length)
    if not len(spool.lengths):
        raise RankError(ExitCode.BAD_DATA, f"data.packing: {source} has no samples")
    state = np.random.get_state()
    np.random.seed(seed)
    try:
        sequences, _ = create_packing_strategy(spool.histogram(), seq_length, _ALGORITHM)
        lines = _LinesByLength(spool.lengths)
    finally:
        np.random.set_state(state)
    rows = (spool.row(list(map(lines.take, lengths))) for lengths in sequences)
    _write(rows, target, max(1, _GROUP_TOKENS // seq_length))


def _called_by_bridge(
    *,
    input_path: Path,
    output_path: str | Path,
    packed_sequence_size: int,
    tokenizer: Any,
    seed: int,
    dataset_kwargs: dict[str, Any],
    dataset_builder: Callable[..., Any],
    **_others: Any,
) -> None:
    """Bridge's `prepare_gpt_sft_packed_data`. Nothing reads its metadata, and samples are not padded."""
    target = Path(output_path)
    pack_file(input_path, target, packed_sequence_size, tokenizer, seed, dataset_kwargs, dataset_builder)


def _one_by_one(dataset: Any, _workers: int) -> Iterator[dict[str, Any]]:
    """The samples of a file. Raises RankError with BAD_DATA for one that Bridge cannot read."""
    for number in range(len(dataset)):
        try:
            sample = dataset[number]
        except OSError:
            raise
        except Exception as error:  # whatever a template of the user raises
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            text = f"{dataset.file_path}:{number + 1}: {reason}; correct the line, or remove it"
            raise RankError(ExitCode.BAD_DATA, f"data.packing: {text}") from error
        yield sample


class _Spool:
    """The samples of a file, after each other in temporary files, cut at `limit` + 1 tokens.

    The last token is a label: the length of a sample is without it.
    """

    def __init__(self, folder: Path, samples: Iterable[dict[str, Any]], limit: int) -> None:
        lengths, self._limit = array("i"), limit
        self._ids = self._counted = np.empty(0, dtype=np.int8)
        with tempfile.TemporaryFile(dir=folder) as ids, tempfile.TemporaryFile(dir=folder) as counted:
            for sample in samples:
                tokens = np.asarray(sample["input_ids"], dtype=np.int32)[: limit + 1]
                ids.write(tokens.tobytes())
                counted.write(_counted(sample, len(tokens)).tobytes())
                lengths.append(len(tokens) - 1)
            ids.flush()
            counted.flush()
            if lengths:
                self._ids = np.memmap(ids, dtype=np.int32, mode="r")
                self._counted = np.memmap(counted, dtype=np.int8, mode="r")
        self.lengths: Numbers = np.frombuffer(lengths, dtype=np.int32)
        self._starts = np.concatenate(([0], np.cumsum(self.lengths + 1, dtype=np.int64)))

    def histogram(self) -> list[int]:
        """Return the number of samples by length, from 0 to the limit."""
        return np.bincount(self.lengths, minlength=self._limit + 1).tolist()

    def row(self, lines: Sequence[int]) -> dict[str, Numbers]:
        """Return the sequence of the samples at `lines`."""
        places = [slice(self._starts[line], self._starts[line + 1]) for line in lines]
        ends = np.cumsum([place.stop - place.start for place in places])
        return {
            "input_ids": np.concatenate([self._ids[place] for place in places]),
            "loss_mask": np.concatenate([self._counted[place] for place in places]),
            "seq_start_id": np.concatenate(([0], ends[:-1])).astype(np.int32),
            COLUMN: np.asarray(lines, dtype=np.int64),
        }


def _counted(sample: dict[str, Any], tokens: int) -> Numbers:
    """Which places of a sample the loss counts: at each, the token after it is the label."""
    found = np.zeros(tokens, dtype=np.int8)
    if "loss_mask" in sample:
        found[:-1] = np.asarray(sample["loss_mask"], dtype=np.int8)[1:tokens]
    else:
        found[max(0, sample["answer_start_idx"] - 1) :] = 1
    return found


class _LinesByLength:
    """Lines of samples, by their length, in the order in which Bridge takes them: by NumPy's random state."""

    def __init__(self, lengths: Numbers) -> None:
        order = np.argsort(lengths, kind="stable")
        found, firsts = np.unique(lengths[order], return_index=True)
        self._lines = {
            int(length): iter(lines[np.random.permutation(len(lines))][::-1])
            for length, lines in zip(found, np.split(order, firsts[1:]), strict=True)
        }

    def take(self, length: int) -> int:
        return int(next(self._lines[length]))


def _write(rows: Iterable[dict[str, Numbers]], path: Path, of_group: int) -> None:
    """Write packed sequences in the columns and types that Bridge's loader reads, `of_group` at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"input_ids": pa.int32(), "loss_mask": pa.int8(), "seq_start_id": pa.int32(), COLUMN: pa.int64()}
    schema = pa.schema([(name, pa.list_(kind)) for name, kind in types.items()])
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with part.open("wb") as stream:
            with pq.ParquetWriter(stream, schema) as writer:
                for group in batched(rows, of_group):
                    columns = [_lists([row[name] for row in group], kind) for name, kind in types.items()]
                    writer.write_table(pa.table(columns, schema=schema))
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _lists(values: Sequence[Numbers], kind: Any) -> Any:
    import pyarrow as pa

    offsets = np.concatenate(([0], np.cumsum([len(each) for each in values]))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(values), type=kind))
