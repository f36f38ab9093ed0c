"""Chats and documents that a run reads by weight, by megatron-prepare and Megatron-Bridge's own loaders."""

import importlib.util
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.data import chats_command
from megatron_trainer.data.preparation_error import PreparationError
from megatron_trainer.worker.failures import RankError

from tests.trainer.chat_corpus import END, LLAMA, answers, lines, many, openai, write_tokenizer

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None,
    reason="what Megatron-Bridge imports is not installed: run make bridge-training",
)
LENGTH, BATCH = 128, 10
DOCUMENTS = [f"document {number} größer " + "is long " * (number % 5 * 12) for number in range(60)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"), LLAMA)


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of two sources of chats, and of one of documents."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = tmp_path_factory.mktemp("raw")
    (folder / "support.jsonl").write_text(lines(many(200)))
    (folder / "sales.jsonl").write_text(lines([openai(f"price {n}?", f"sale {n}") for n in range(100)]))
    pq.write_table(pa.table({"body": DOCUMENTS}), folder / "docs.parquet", row_group_size=9)
    return folder


def chats(raw: Path, name: str, **settings: Any) -> dict[str, Any]:
    return {"path": f"{raw}/{name}.jsonl"} | settings


def documents(raw: Path, **settings: Any) -> dict[str, Any]:
    return {"path": f"{raw}/docs.parquet", "format": "parquet", "key": "body"} | settings


def words(folder: Path, tokenizer: Path, *sources: dict[str, Any], **flags: Any) -> list[str]:
    values = {"seq-length": LENGTH, "batch": BATCH, "samples": 100, "split": "100,0", "max-epochs": 9}
    values |= {name.replace("_", "-"): value for name, value in flags.items()}
    found = [
        "--chats",
        json.dumps(sources),
        "--output",
        f"{folder}/out/chats",
        "--output-dir",
        f"{folder}/out",
    ]
    found += ["--tokenizer-dir", str(tokenizer)]
    for name, value in values.items():
        found += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return found


class Reader:
    """What a run reads of a prepared folder, from Bridge's datasets and loaders."""

    def __init__(self, folder: Path, tokenizer: Path, iterations: int = 10, evaluations: int = 0) -> None:
        from megatron_trainer.bridge import blended_samples, configuration

        configuration.import_bridge()
        from megatron.bridge.data.builders.gpt_sft import GPTSFTDatasetBuilder, GPTSFTDatasetConfig
        from megatron.bridge.training.tokenizers.config import TokenizerConfig
        from megatron.core.tokenizers.utils.build_tokenizer import build_tokenizer

        self.folder = folder
        dataset = GPTSFTDatasetConfig(
            seq_length=LENGTH,
            dataset_root=folder,
            preprocessing=configuration.preprocessing(chats=True),
            dataset_kwargs={"pad_to_max_length": True, "index_mapping_dir": str(folder.parent / "index")},
            do_validation=evaluations > 0,
            do_test=False,
            num_workers=0,
        )
        train = SimpleNamespace(train_samples=None, train_iters=iterations, global_batch_size=BATCH)
        validation = SimpleNamespace(
            eval_interval=iterations, eval_iters=evaluations, eval_global_batch_size=None
        )
        config: Any = SimpleNamespace(dataset=dataset, train=train, validation=validation)
        if (folder / "blend.json").is_file():
            blended_samples.read_by_weight(config)
        self.config = config.dataset
        self.tokenizer = build_tokenizer(
            TokenizerConfig(tokenizer_type="HuggingFaceTokenizer", tokenizer_model=str(tokenizer))
        )
        self.training, self.validation, _ = GPTSFTDatasetBuilder(self.config, self.tokenizer).build()

    def loader(self, consumed: int = 0, dataset: Any = None) -> Any:
        from megatron.bridge.data import loaders

        chosen = self.training if dataset is None else dataset
        return loaders.build_pretraining_data_loader(
            chosen,
            consumed,
            self.config.dataloader_type,
            micro_batch_size=1,
            num_workers=0,
            data_sharding=True,
            collate_fn=chosen.collate_fn,
            pin_memory=False,
            global_batch_size=BATCH,
            seed=self.config.seed,
        )

    def iterations(self, consumed: int = 0, dataset: Any = None) -> Iterator[list[str]]:
        """What the loss counts of each sample of each iteration, as text."""
        for batch in self.loader(consumed, dataset):
            yield [
                self.tokenizer.detokenize(labels[counted == 1].tolist())
                for labels, counted in zip(batch["labels"], batch["loss_mask"], strict=True)
            ]


def source_of(text: str) -> str:
    if "sale " in text:
        return "sales"
    return "support" if ", größer" in text else "docs"


def test_each_iteration_has_samples_of_each_source_by_its_weight(
    raw: Path, tokenizer: Path, tmp_path: Path
) -> None:
    asked = [chats(raw, "support", weight=5), chats(raw, "sales", weight=3), documents(raw, weight=2)]
    text = chats_command.run(words(tmp_path, tokenizer, *asked))
    assert text.startswith("360 chats and documents are prepared, ")
    found = [Counter(map(source_of, each)) for each in Reader(tmp_path / "out/chats", tokenizer).iterations()]
    assert found == [{"support": 5, "sales": 3, "docs": 2}] * 10


def test_no_sample_is_repeated_before_all_others_of_its_source_are_read(
    raw: Path, tokenizer: Path, tmp_path: Path
) -> None:
    asked = [chats(raw, "support", weight=0.8, documents=40), chats(raw, "sales", weight=0.2)]
    chats_command.run(words(tmp_path, tokenizer, *asked, samples=200))
    reader = Reader(tmp_path / "out/chats", tokenizer, iterations=20)
    read = [text for each in reader.iterations() for text in each]
    support = [text.partition(END)[0] for text in read if source_of(text) == "support"]
    assert len(support) == 160
    wanted = sorted(answers(chat)[0] for chat in many(40))
    for first in range(0, 160, 40):
        assert sorted(support[first : first + 40]) == wanted
    assert support[:40] != support[40:80], "each epoch has another order"
    sales = [text for text in read if source_of(text) == "sales"]
    assert len(sales) == len(set(sales)) == 40


def test_a_resumed_run_reads_on_in_the_same_order_also_if_it_was_made_longer(
    raw: Path, tokenizer: Path, tmp_path: Path
) -> None:
    asked = [chats(raw, "support", weight=0.7), documents(raw, weight=0.3)]
    chats_command.run(words(tmp_path, tokenizer, *asked))
    whole = list(Reader(tmp_path / "out/chats", tokenizer).iterations())
    longer = Reader(tmp_path / "out/chats", tokenizer, iterations=15)
    assert list(longer.iterations(consumed=4 * BATCH))[:6] == whole[4:]
    assert list(longer.iterations())[:10] == whole


def test_the_loss_counts_every_token_of_a_document_but_its_first(
    raw: Path, tokenizer: Path, tmp_path: Path
) -> None:
    chats_command.run(words(tmp_path, tokenizer, documents(raw)))
    reader = Reader(tmp_path / "out/chats", tokenizer)
    pieces = []
    for number in range(len(reader.training)):
        batch = reader.training.collate_fn([reader.training[number]])
        labels = batch["labels"][batch["loss_mask"] == 1].tolist()
        ahead = batch["tokens"][0, : len(labels)].tolist()
        assert ahead[1:] == labels[:-1]
        pieces.append((ahead[0], labels))
    texts, ids = [], []
    for first, labels in pieces:
        ids = [*ids, *labels] if ids else [first, *labels]
        assert ids[-len(labels) - 1] == first, "a piece begins with the last token of the one before"
        if reader.tokenizer.detokenize(labels[-1:]) == END:
            texts.append(reader.tokenizer.detokenize(ids))
            ids = []
    assert texts == [f"{text}{END}" for text in DOCUMENTS]
    assert len(pieces) > len(DOCUMENTS)
    assert max(len(labels) for _, labels in pieces) == LENGTH


def test_sources_without_weights_are_read_once_each_in_an_epoch(
    raw: Path, tokenizer: Path, tmp_path: Path
) -> None:
    chats_command.run(words(tmp_path, tokenizer, chats(raw, "support"), chats(raw, "sales")))
    reader = Reader(tmp_path / "out/chats", tokenizer)
    read = [text for each in reader.iterations() for text in each]
    assert Counter(map(source_of, read)) == {"support": 200, "sales": 100}
    assert len(set(read)) == 300


def test_an_evaluation_reads_sources_for_validation_alone_by_their_weights(
    raw: Path, tokenizer: Path, tmp_path: Path
) -> None:
    held = [chats(raw, "sales", weight=0.7), documents(raw, weight=0.3)]
    asked = [chats(raw, "support"), *(each | {"validation": True} for each in held)]
    chats_command.run(words(tmp_path, tokenizer, *asked, evaluates=True))
    reader = Reader(tmp_path / "out/chats", tokenizer, evaluations=2)
    found = [Counter(map(source_of, each)) for each in reader.iterations(0, reader.validation)]
    assert found == [{"sales": 7, "docs": 3}] * 4
    read = [text for each in reader.iterations() for text in each]
    assert len(set(read)) == len(read) == 200, "sources to train on have no weights"


def made(folder: Path) -> dict[str, bytes]:
    """The prepared files by their paths."""
    root = folder / "out/objects"
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_any_number_of_workers_make_the_same_files(
    raw: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megatron_trainer.data.sources.SHARD_BYTES", 2000)
    asked = [chats(raw, "support", weight=0.5), documents(raw, weight=0.2), chats(raw, "sales", weight=0.3)]
    for name, pods in (("alone", 1), ("three", 3)):
        for index in reversed(range(pods)):
            monkeypatch.setenv("JOB_COMPLETION_INDEX", str(index))
            chats_command.run([*words(tmp_path / name, tokenizer, *asked), "--pods", str(pods)])
    found = made(tmp_path / "alone")
    assert found == made(tmp_path / "three")
    assert sum(path.endswith("blend.json") for path in found) == 1


def test_other_weights_read_the_same_files_and_are_another_folder(
    raw: Path, tokenizer: Path, tmp_path: Path
) -> None:
    for name, weight in (("one", 0.5), ("other", 0.6)):
        given = words(tmp_path, tokenizer, chats(raw, "support", weight=weight), chats(raw, "sales"))
        given[given.index("--output") + 1] = f"{tmp_path}/out/{name}"
        chats_command.run(given)
    one, other = (tmp_path / "out" / name for name in ("one", "other"))
    assert one.resolve() != other.resolve()
    assert (one / "training.jsonl").read_bytes() == (other / "training.jsonl").read_bytes()
    assert len([*(tmp_path / "out/objects").iterdir()]) == 4, "each source is prepared once"


@pytest.mark.parametrize(
    ("flags", "weight", "problem"),
    [
        (
            {"max_epochs": 1, "samples": 200},
            0.6,
            "data.sources[1].weight: the run reads 120 samples of it (0.6 of 200), and 100 are for training:"
            " 2 epochs, at most 1; set data.maxEpochs: 2, a smaller weight or training.trainIters, or add"
            " chats",
        ),
        (
            {"split": "99.9,0.1", "evaluates": True},
            0.4,
            "data.sources[0].path: data.split 99.9,0.1 leaves none of its samples to validation; add some, or"
            " set another data.split, or training.evalIters: 0",
        ),
    ],
)
def test_what_a_run_reads_by_weight_is_checked(
    flags: dict[str, Any], weight: float, problem: str, raw: Path, tokenizer: Path, tmp_path: Path
) -> None:
    asked = [chats(raw, "support", weight=1 - weight), chats(raw, "sales", weight=weight)]
    with pytest.raises(PreparationError) as refused:
        chats_command.run(words(tmp_path, tokenizer, *asked, **flags))
    assert (refused.value.code, str(refused.value)) == (ExitCode.BAD_DATA, problem)


def test_a_document_with_a_token_that_the_model_lacks_is_refused(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one <|end_header_id|> two")
    asked = {"path": f"{tmp_path}/a.txt", "format": "text"}
    from transformers import AutoTokenizer

    loaded: Any = AutoTokenizer.from_pretrained(str(tokenizer), local_files_only=True)
    size = int(loaded.convert_tokens_to_ids("<|end_header_id|>"))
    with pytest.raises(PreparationError, match=r"data\.sources: a document has '<\|end_header_id\|>'"):
        chats_command.run(words(tmp_path, tokenizer, asked, vocab_size=size))


def test_weights_that_are_not_there_end_a_run(tmp_path: Path) -> None:
    from megatron_trainer.bridge import blended_samples

    config = SimpleNamespace(dataset=SimpleNamespace(dataset_root=tmp_path))
    with pytest.raises(RankError, match=r"dataset\.dataset_root: .*blend\.json") as raised:
        blended_samples.read_by_weight(config)
    assert raised.value.code == ExitCode.BAD_DATA
