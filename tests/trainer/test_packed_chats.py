"""Prepared chats and documents in packed sequences: what the loss counts, and which lines a sequence has."""

import importlib.util
import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.data import chats_command
from megatron_trainer.data.sample_documents import SampleIndexError, open_index
from megatron_trainer.worker.failures import RankError

from tests.trainer.chat_corpus import END, GENERATION, LLAMA, answers, lines, many, openai, write_tokenizer

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None,
    reason="what Megatron-Bridge imports is not installed: run make bridge-training",
)
LENGTH, COUNT = 256, 40
DOCUMENT = "is größer " * 40
LONG = openai("list", "a" * 400, "more?", "never reached")


class Packed:
    """What a run reads of a folder of prepared samples, by Bridge's own packing and dataset."""

    def __init__(self, folder: Path, tokenizer: Path, length: int = LENGTH, batch: int = 2) -> None:
        from megatron_trainer.bridge import configuration, packing

        configuration.import_bridge()
        from megatron.bridge.data.builders.gpt_sft import GPTSFTDatasetBuilder, GPTSFTDatasetConfig
        from megatron.bridge.training.tokenizers.config import TokenizerConfig
        from megatron.core.tokenizers.utils.build_tokenizer import build_tokenizer

        index = folder.parent / "index"
        dataset = GPTSFTDatasetConfig(
            seq_length=length,
            dataset_root=folder,
            preprocessing=configuration.preprocessing(chats=True),
            dataset_kwargs={"pad_to_max_length": True, "index_mapping_dir": str(index)},
            do_validation=False,
            do_test=False,
        )
        tokenizing = TokenizerConfig(tokenizer_type="HuggingFaceTokenizer", tokenizer_model=str(tokenizer))
        self.config: Any = SimpleNamespace(
            model=SimpleNamespace(seq_length=length),
            dataset=dataset,
            tokenizer=tokenizing,
            train=SimpleNamespace(train_samples=None, train_iters=3, global_batch_size=batch),
            validation=SimpleNamespace(eval_interval=1, eval_iters=0, eval_global_batch_size=None),
        )
        packing.pack(self.config, folder.parent / "packed")
        self.tokenizer: Any = build_tokenizer(tokenizing)
        self._builder = GPTSFTDatasetBuilder
        self.build()

    def build(self) -> None:
        self.training, *_ = self._builder(self.config.dataset, self.tokenizer).build()

    def counted(self, number: int) -> list[str]:
        """What the loss counts of each sample of a sequence, as text."""
        batch = self.training.collate_fn([self.training[number]])
        labels, mask = batch["labels"][0], batch["loss_mask"][0]
        bounds = pairwise(batch["cu_seqlens_q"][0].tolist())
        counted = [labels[start:end][mask[start:end] == 1].tolist() for start, end in bounds]
        return [self.tokenizer.detokenize(ids) for ids in counted if ids]

    def lines(self) -> list[list[int]]:
        """The lines of each sequence, as `megatron-samples` finds them."""
        path = self.config.dataset.offline_packing_specs.packed_train_data_path
        of = {"kind": "packed", "path": path, "lines": "training.jsonl"}
        index = open_index(of, Path("/none"))
        assert index is not None
        return [[part.number for part in index.parts(row)] for row in range(len(self.training))]


@pytest.fixture(scope="module", params=[LLAMA, GENERATION], ids=["llama", "generation"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"), request.param)


@pytest.fixture(scope="module")
def packed(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Packed:
    folder = tmp_path_factory.mktemp("data")
    (folder / "raw.jsonl").write_text(lines([*many(COUNT), LONG]))
    (folder / "document.txt").write_text(DOCUMENT)
    sources = [{"path": f"{folder}/raw.jsonl"}, {"path": f"{folder}/document.txt", "format": "text"}]
    words = ["--chats", json.dumps(sources), "--output", f"{folder}/out/chats", "--output-dir"]
    words += [f"{folder}/out", "--tokenizer-dir", str(tokenizer), "--seq-length", str(LENGTH)]
    chats_command.run([*words, "--batch", "2", "--samples", "6", "--split", "100,0", "--max-epochs", "1"])
    return Packed(folder / "out/chats", tokenizer)


def test_the_loss_counts_every_answer_and_every_token_of_a_document_once(packed: Packed) -> None:
    found = [text for number in range(len(packed.training)) for text in packed.counted(number)]
    whole = ["".join(f"{text}{END}" for text in answers(chat)) for chat in many(COUNT)]
    pieces = [text for text in found if "is größer" in text]
    (cut,) = (text for text in found if set(text) == {"a"})
    assert sorted(found) == sorted([*whole, *pieces, cut])
    # The first token of a document is no label.
    assert "".join(sorted(pieces, key=len, reverse=True)) == f"{DOCUMENT[1:]}{END}"
    assert 100 < len(cut) < 400
    assert len(packed.training) < len(found) / 1.5, "sequences have several samples"


def test_the_lines_of_a_sequence_are_those_of_its_samples(packed: Packed) -> None:
    records = list(map(json.loads, (packed.config.dataset.dataset_root / "training.jsonl").open()))
    rows = packed.lines()
    assert sorted(line for row in rows for line in row) == list(range(len(records)))
    for number, row in enumerate(rows):
        counted = packed.counted(number)
        assert len(counted) == len(row)
        for text, line in zip(counted, row, strict=True):
            if "messages" in records[line] and set(text) != {"a"}:
                assert text == "".join(f"{each}{END}" for each in answers(records[line]))


def test_samples_are_packed_in_the_same_way_again(packed: Packed, tokenizer: Path) -> None:
    path = Path(packed.config.dataset.offline_packing_specs.packed_train_data_path)
    before, rows = path.read_bytes(), packed.lines()
    path.unlink()
    again = Packed(packed.config.dataset.dataset_root, tokenizer)
    assert (path.read_bytes(), again.lines()) == (before, rows)


@pytest.mark.parametrize(
    ("batch", "iterations", "epochs", "problem"),
    [
        (
            200,
            1,
            None,
            "data.packing: {rows} packed sequences are for training, and an iteration takes 200; add samples,"
            " or set a smaller training.globalBatchSize or training.seqLength",
        ),
        (
            10,
            9,
            2,
            "data.maxEpochs: the run reads 90 packed sequences, and {rows} are for training: {epochs} epochs,"
            " at most 2; set data.maxEpochs: {epochs}, a smaller training.trainIters, or add samples",
        ),
        (10, 9, None, ""),
    ],
)
def test_a_run_counts_packed_sequences(
    batch: int,
    iterations: int,
    epochs: int | None,
    problem: str,
    packed: Packed,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from megatron.bridge.data.builders.gpt_sft import GPTSFTDatasetBuilder
    from megatron_trainer.bridge import packing

    monkeypatch.setattr(GPTSFTDatasetBuilder, "_build_datasets", GPTSFTDatasetBuilder._build_datasets)
    monkeypatch.setattr(packed.config.train, "global_batch_size", batch)
    monkeypatch.setattr(packed.config.train, "train_iters", iterations)
    packing.check_when_packed(packed.config, epochs)
    if not problem:
        packed.build()
        assert packed.training.lines_of.endswith("chats/training.jsonl")
        return
    with pytest.raises(RankError) as raised:
        packed.build()
    rows = len(packed.training)
    needed = -(-batch * iterations // (rows // batch * batch or 1))
    assert str(raised.value) == problem.format(rows=rows, epochs=needed)
    assert raised.value.code == ExitCode.BAD_DATA


def test_a_sequence_that_a_packed_file_lacks_is_named(packed: Packed) -> None:
    path = packed.config.dataset.offline_packing_specs.packed_train_data_path
    index = open_index({"kind": "packed", "path": path, "lines": "training.jsonl"}, Path("/none"))
    assert index is not None
    with pytest.raises(SampleIndexError, match=r"has \d+ sequences, and 999 was read"):
        index.parts(999)
    lost = {"kind": "packed", "path": "/none/packed/x/training.idx.parquet", "lines": "training.jsonl"}
    with pytest.raises(SampleIndexError, match="the lines of packed sequences are there"):
        open_index(lost, Path("/none"))
