"""Samples that share a sequence: Megatron-Bridge's packed files keep where each begins."""

import dataclasses
import importlib.util
import json
import random
import re
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.bridge import packed_lines, packing
from megatron_trainer.data import packed_samples
from megatron_trainer.data.check_meter import CheckMeter
from megatron_trainer.data.packed_samples import PackedRun
from megatron_trainer.data.preparation_error import PreparationError

from tests.trainer.bridge_run import WORDS, write_tokenizer

LENGTH = 32
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None,
    reason="what Megatron-Bridge imports is not installed: run make bridge-training",
)


def test_every_sample_of_a_packed_sequence_has_boundaries_of_its_own(tmp_path: Path) -> None:
    from megatron_trainer.weights import cpu_model

    cpu_model.import_bridge()
    from megatron.bridge.data.builders.gpt_sft import GPTSFTDatasetBuilder, GPTSFTDatasetConfig
    from megatron.bridge.training.tokenizers.config import TokenizerConfig
    from megatron.core.tokenizers.utils.build_tokenizer import build_tokenizer
    from megatron_trainer.bridge import configuration
    from transformers import AutoTokenizer

    write_tokenizer(tmp_path / "tokenizer")
    (tmp_path / "samples").mkdir()
    texts = [(WORDS[n], " ".join(WORDS[: n % 5 + 1])) for n in range(20)]
    lines = "".join(f"{json.dumps({'input': asked, 'output': answer})}\n" for asked, answer in texts)
    (tmp_path / "samples" / "training.jsonl").write_text(lines)
    dataset = GPTSFTDatasetConfig(
        seq_length=LENGTH,
        dataset_root=tmp_path / "samples",
        preprocessing=configuration.preprocessing(chats=False),
        do_validation=False,
        do_test=False,
    )
    tokenizing = TokenizerConfig(
        tokenizer_type="HuggingFaceTokenizer", tokenizer_model=str(tmp_path / "tokenizer")
    )
    config = SimpleNamespace(model=SimpleNamespace(seq_length=LENGTH), dataset=dataset, tokenizer=tokenizing)
    packing.pack(config, tmp_path / "packed")
    tokenizer = build_tokenizer(tokenizing)
    train, *_ = GPTSFTDatasetBuilder(dataset, tokenizer).build()

    words = AutoTokenizer.from_pretrained(str(tmp_path / "tokenizer"), local_files_only=True)
    found = []
    for number in range(len(train)):
        batch = train.collate_fn([train[number]])
        tokens, labels, counted = (batch[name][0].tolist() for name in ("tokens", "labels", "loss_mask"))
        for start, end in pairwise(int(each) for each in batch["cu_seqlens_q"].flatten()):
            # What fills up the sequence has no answer. A label is the token after its place.
            if any(counted[start:end]):
                ids = [*tokens[start:end], labels[end - 1]]
                found.append(" ".join(words.convert_ids_to_tokens(ids)).removesuffix(" </s>"))
    assert 1 < len(train) < len(texts)
    assert sorted(found) == sorted(f"{asked} {answer}" for asked, answer in texts)


class Small:
    """Questions of many lengths, some longer than a sequence, and a run that packs them."""

    def __init__(self, folder: Path) -> None:
        from megatron_trainer.weights import cpu_model

        cpu_model.import_bridge()
        from megatron.bridge.data.builders.gpt_sft import GPTSFTDatasetBuilder, GPTSFTDatasetConfig
        from megatron.bridge.training.tokenizers.config import TokenizerConfig
        from megatron.core.tokenizers.utils.build_tokenizer import build_tokenizer
        from megatron_trainer.bridge import configuration, packed_lines

        packed_lines.install()
        self.folder, self.tokenizer = folder, folder / "tokenizer"
        write_tokenizer(self.tokenizer)
        (folder / "samples").mkdir()
        for part, count in (("training", 90), ("validation", 30)):
            lengths = random.Random(part).choices(range(1, LENGTH + 6), k=count)
            texts = [{"input": WORDS[n % 36], "output": " ".join(WORDS * 2)[: 2 * n]} for n in lengths]
            (folder / f"samples/{part}.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in texts))
        dataset = GPTSFTDatasetConfig(
            seq_length=LENGTH,
            dataset_root=folder / "samples",
            preprocessing=configuration.preprocessing(chats=False),
            dataset_kwargs={"index_mapping_dir": str(folder / "index")},
            seed=7,
            do_test=False,
        )
        tokenizing = TokenizerConfig(
            tokenizer_type="HuggingFaceTokenizer", tokenizer_model=str(self.tokenizer)
        )
        self.config: Any = SimpleNamespace(
            model=SimpleNamespace(seq_length=LENGTH), dataset=dataset, tokenizer=tokenizing
        )
        self._make = lambda: GPTSFTDatasetBuilder(dataset, build_tokenizer(tokenizing))

    def builder(self, folder: str) -> Any:
        """Bridge's builder of a run that looks for its packed files in `folder`."""
        from megatron_trainer.bridge import packing

        packing.pack(self.config, self.folder / folder)
        return self._make()

    def job(self, folder: str, batch: int = 2, max_epochs: int | None = None) -> PackedRun:
        """The run of the Job, which reads 8 sequences."""
        return PackedRun(
            root=self.folder / "samples",
            tokenizer=self.tokenizer,
            chats=False,
            seq_length=LENGTH,
            seed=7,
            batch=batch,
            samples=8,
            max_epochs=max_epochs,
            evaluates=True,
            folder=self.folder / folder,
        )


def test_packed_files_are_those_of_bridge_number_by_number(tmp_path: Path) -> None:
    small = Small(tmp_path)
    builder = small.builder("packed")
    from megatron.bridge.data.builders.gpt_sft import build_gpt_sft_split
    from megatron.bridge.data.packing import algorithms

    whole = build_gpt_sft_split(
        builder.train_path,
        tokenizer=builder.tokenizer,
        seq_length=LENGTH,
        memmap_workers=2,
        seed=7,
        packed_sequence_size=-1,
        is_test=True,
        dataset_kwargs=builder.dataset_kwargs,
    )
    assert whole is not None
    samples = [whole[number] for number in range(len(whole))]
    sequences, histogram = algorithms.create_hist(np.array(samples), LENGTH)
    np.random.seed(7)
    strategy, _ = algorithms.create_packing_strategy(histogram, LENGTH, "first_fit_shuffle")
    expected = algorithms.fill_packing_strategy(strategy, sequences, LENGTH, 0)

    builder.prepare_data()
    rows = pq.read_table(builder.train_path_packed).to_pylist()
    assert [{name: row[name] for name in expected[0]} for row in rows] == expected
    assert sorted(line for row in rows for line in row["lines"]) == list(range(90))


def test_a_job_packs_what_rank_0_would_and_the_run_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = Small(tmp_path)
    meter = CheckMeter()
    text = packed_samples.pack(small.job("prepared/index/run"), meter)
    assert re.fullmatch(r"packed in [\d.]+ s: \d+ sequences for training, \d+ for validation", text)
    progress = meter.report().preparation
    assert progress is not None
    assert progress.bytes_done == progress.bytes_total > 0

    alone = small.builder("alone/packed")
    alone.prepare_data()
    run = small.builder("run/packed")
    taken = Path(run.train_path_packed).parent
    packing.take(taken, tmp_path / "prepared/index/run" / taken.name)
    for name in ("training.idx.parquet", "validation.idx.parquet"):
        assert (taken / name).read_bytes() == (Path(alone.train_path_packed).parent / name).read_bytes()
    monkeypatch.setattr(packed_lines, "pack_file", lambda *_: pytest.fail("it was packed again"))
    run.prepare_data()
    packed_samples.pack(small.job("prepared/index/run"), CheckMeter())


def test_a_torn_file_of_a_job_is_packed_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = Small(tmp_path)
    packed_samples.pack(small.job("prepared"), CheckMeter())
    run = small.builder("run/packed")
    own = Path(run.train_path_packed).parent
    whole = tmp_path / "prepared" / own.name / "training.idx.parquet"
    whole.write_bytes(whole.read_bytes()[:-1])
    packing.take(own, whole.parent)
    assert "the packed samples in" in capsys.readouterr().out
    assert not list(own.iterdir())


def test_sequences_that_do_not_suffice_are_refused_before_the_run(tmp_path: Path) -> None:
    small = Small(tmp_path)
    with pytest.raises(PreparationError, match=r"data\.packing: \d+ packed sequences are for validation"):
        packed_samples.pack(small.job("packed", batch=30), CheckMeter())
    job = dataclasses.replace(small.job("packed", max_epochs=1), samples=10_000)
    with pytest.raises(PreparationError, match=r"data\.maxEpochs: the run reads 10,000") as raised:
        packed_samples.pack(job, CheckMeter())
    assert raised.value.code == ExitCode.BAD_DATA


def test_a_line_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    small = Small(tmp_path)
    path = tmp_path / "samples/training.jsonl"
    path.write_text(path.read_text() + '{"input": \n')
    with pytest.raises(PreparationError, match=rf"data\.packing: {path}:91: .*; correct the line, or"):
        packed_samples.pack(small.job("packed"), CheckMeter())


def test_a_folder_that_cannot_be_written_is_left_to_rank_0(tmp_path: Path) -> None:
    small = Small(tmp_path)
    (tmp_path / "packed").write_text("a file")
    text = packed_samples.pack(small.job("packed"), CheckMeter())
    assert text.startswith("warning: samples are not packed, rank 0 will pack them while the others wait: ")


def test_other_samples_are_packed_again(tmp_path: Path) -> None:
    from megatron_trainer.weights import cpu_model

    cpu_model.import_bridge()
    from megatron_trainer.bridge import configuration

    samples = tmp_path / "training.jsonl"
    samples.write_text("{}\n")
    config = SimpleNamespace(
        model=SimpleNamespace(seq_length=LENGTH),
        dataset=SimpleNamespace(
            dataset_root=tmp_path, preprocessing=configuration.preprocessing(chats=False), seed=1
        ),
        tokenizer=SimpleNamespace(tokenizer_model=str(tmp_path), tokenizer_type="HuggingFaceTokenizer"),
    )

    def packed() -> Path:
        packing.pack(config, tmp_path / "packed")
        return Path(config.dataset.offline_packing_specs.packed_train_data_path)

    first = packed()
    (first.parent / ".training.idx.parquet.7").touch()
    assert packed() == first
    assert not list(first.parent.iterdir()), "what a killed rank 0 has left is removed"
    samples.write_text("{}\n{}\n")
    other = packed()
    assert other != first
    config.model.seq_length *= 2
    assert packed() not in (first, other)
    config.model.seq_length //= 2
    config.dataset.seed = 2
    assert packed() not in (first, other), "samples are packed in an order of the seed"
