"""Samples that share a sequence: Megatron-Bridge's packed files keep where each begins."""

import importlib.util
import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

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
    from megatron_trainer.bridge import configuration, packing
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


def test_other_samples_or_a_torn_file_are_packed_again(tmp_path: Path) -> None:
    from megatron_trainer.weights import cpu_model

    cpu_model.import_bridge()
    import pyarrow as pa
    import pyarrow.parquet as pq
    from megatron_trainer.bridge import configuration, packing

    samples = tmp_path / "training.jsonl"
    samples.write_text("{}\n")
    config = SimpleNamespace(
        model=SimpleNamespace(seq_length=LENGTH),
        dataset=SimpleNamespace(
            dataset_root=tmp_path, preprocessing=configuration.preprocessing(chats=False), seed=1
        ),
        tokenizer=SimpleNamespace(tokenizer_model=str(tmp_path)),
    )

    def packed() -> Path:
        packing.pack(config, tmp_path / "packed")
        return Path(config.dataset.offline_packing_specs.packed_train_data_path)

    first = packed()
    pq.write_table(pa.table({"input_ids": [[1, 2]]}), first)
    assert packed() == first
    assert first.exists(), "a whole file is used again"
    first.write_bytes(first.read_bytes()[:-1])
    packed()
    assert not first.exists()
    samples.write_text("{}\n{}\n")
    other = packed()
    assert other != first
    config.model.seq_length *= 2
    assert packed() not in (first, other)
    config.model.seq_length //= 2
    config.dataset.seed = 2
    assert packed() not in (first, other), "samples are packed in an order of the seed"
