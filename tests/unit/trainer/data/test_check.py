"""The datasets of a run are checked against it before accelerators are taken, with the real arguments."""

import json
from pathlib import Path
from typing import Any

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.data import check, prepare, sources_command, tokenizer
from megatron_trainer.data.prepare import _run

from tests.unit.trainer.data.corpus import TEXTS, lines, with_own_code

RUN = {
    "seq-length": "64",
    "train-iters": "10",
    "global-batch-size": "2",
    "eval-iters": "1",
    "split": "90,10,0",
}


def run(
    folder: Path, tokenizer_dir: Path, *own: str, documents: int = 200, weight: float = 1.0, **flags: str
) -> tuple[ExitCode, str]:
    """What megatron-prepare ends with for two equal sources, of the weights `weight` and 1."""
    entries = []
    for name in "ab":
        if not (folder / f"{name}.jsonl").exists():
            (folder / f"{name}.jsonl").write_bytes(lines(TEXTS[:documents]))
        output = str(folder / "out" / f"{name}_text_document")
        entries.append({"path": f"{folder}/{name}.jsonl", "format": "jsonl", "output": output})
    words = ["--sources", json.dumps(entries), "--output-dir", str(folder / "out"), *own, "--append-eod"]
    words += ["--tokenizer-dir", str(tokenizer_dir), "--"]
    for name, value in (RUN | {name.replace("_", "-"): value for name, value in flags.items()}).items():
        words += [f"--{name}", value]
    words += ["--data-path", str(weight), entries[0]["output"], "1", entries[1]["output"]]
    code, text, _ = _run(words)
    return code, text


def test_a_run_that_reads_each_document_once_passes(tmp_path: Path, tokenizer_dir: Path) -> None:
    code, text = run(tmp_path, tokenizer_dir, "--vocab-size", "400")
    assert code == ExitCode.OK, text


def test_a_source_that_would_be_repeated_is_refused_with_the_numbers(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    flags: dict[str, Any] = {"weight": 3.0, "train_iters": "100"}
    code, text = run(tmp_path, tokenizer_dir, **flags)
    assert code == ExitCode.BAD_DATA
    assert text.startswith("data.sources[0].weight: the run reads 150 samples of it (0.75 of 200), an epoch")
    assert not list((tmp_path / "out").glob("*_text_document.*")), "it may be prepared from other files"
    allowed = text.rpartition("data.maxEpochs: ")[2].partition(",")[0]
    assert f"{allowed} epochs, at most 1" in text
    code, text = run(tmp_path, tokenizer_dir, "--max-epochs", allowed, **flags)
    assert code == ExitCode.OK, text
    code, text = run(tmp_path, tokenizer_dir, "--max-epochs", str(int(allowed) - 1), **flags)
    assert code == ExitCode.BAD_DATA


def test_the_samples_of_an_epoch_are_those_that_megatron_counts(tmp_path: Path, tokenizer_dir: Path) -> None:
    import numpy as np
    from megatron.core.datasets.blended_megatron_dataset_config import (
        convert_split_vector_to_split_matrix,
        parse_and_normalize_split,
    )
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    from megatron.core.datasets.utils import normalize

    assert run(tmp_path, tokenizer_dir)[0] == ExitCode.OK
    dataset = IndexedDataset(str(tmp_path / "out" / "a_text_document"))
    assert normalize([1.0])
    for split in ("90,10,0", "99,1,0", "1,1,1", "969,30,1", "98,2"):
        matrix = convert_split_vector_to_split_matrix(parse_and_normalize_split(split))
        expected = [
            (0, 0) if part is None else tuple(round(bound * float(len(dataset))) for bound in part)
            for part in matrix
        ]
        found = check.split_bounds(split, len(dataset))
        assert [pair for pair in found if pair[0] != pair[1]] == [p for p in expected if p[0] != p[1]]
        first, last = found[0]
        tokens = int(np.sum(dataset.sequence_lengths[first:last]))
        assert check.count_tokens(tmp_path / "out" / "a_text_document.idx", first, last) == tokens


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"split": "99,1,0"}, "leaves none of its 20 documents to validation; set another data.split"),
        ({"split": "1,99,0"}, "leaves none of its 20 documents to training; add documents"),
        ({"seq_length": "99999"}, "and a sample has 100,000; add documents, or set training.seqLength lower"),
    ],
)
def test_a_split_without_a_document_or_sample_is_refused_for_megatron_would_never_return(
    tmp_path: Path, tokenizer_dir: Path, flags: dict[str, str], message: str
) -> None:
    code, text = run(tmp_path, tokenizer_dir, documents=20, train_iters="1", **flags)
    assert (code, message in text) == (ExitCode.BAD_DATA, True), text


@pytest.mark.parametrize(("documents", "passes"), [(20, True), (1, False)])
def test_a_dataset_for_validation_alone_needs_a_sample_and_no_share_of_the_others(
    documents: int, passes: bool, tmp_path: Path, tokenizer_dir: Path
) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(TEXTS[:20]))
    (tmp_path / "b.jsonl").write_bytes(lines(TEXTS[:documents]))
    outputs = [str(tmp_path / "out" / f"{name}_text_document") for name in "ab"]
    entries = [
        {"path": f"{tmp_path}/{name}.jsonl", "format": "jsonl", "output": output}
        for name, output in zip("ab", outputs, strict=True)
    ]
    words = ["--sources", json.dumps(entries), "--output-dir", str(tmp_path / "out"), "--append-eod"]
    words += ["--tokenizer-dir", str(tokenizer_dir), "--", "--train-data-path", outputs[0]]
    words += ["--valid-data-path", outputs[1]]
    for name, value in (RUN | {"train-iters": "1"}).items():
        words += [f"--{name}", value] if name != "split" else []
    code, text, _ = _run(words)
    assert (code == ExitCode.OK) == passes, text
    if not passes:
        assert text.startswith("data.sources[1].path: it has ")
        assert text.endswith(" and a sample has 65; add documents, or set training.seqLength lower")


def test_a_run_that_does_not_evaluate_needs_no_validation(tmp_path: Path, tokenizer_dir: Path) -> None:
    code, text = run(tmp_path, tokenizer_dir, documents=20, train_iters="1", split="99,1,0", eval_iters="0")
    assert code == ExitCode.OK, text


def test_a_tokenizer_larger_than_the_model_is_refused_before_a_document_is_read(
    tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megatron_trainer.data.blend.read_documents", lambda *_: pytest.fail("was read"))
    code, text = run(tmp_path, tokenizer_dir, "--vocab-size", "100")
    largest = tokenizer.load(tokenizer_dir)[0].get_vocab_size() - 1
    assert code == ExitCode.BAD_DATA
    assert (
        f"has token ids up to {largest}, and model.vocabSize is 100; set model.vocabSize: {largest + 1}"
        in text
    )


def _with_added(folder: Path, tokenizer_dir: Path) -> tuple[Path, int]:
    folder.mkdir()
    for path in tokenizer_dir.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    loaded, _ = tokenizer.load(folder)
    size = loaded.get_vocab_size()
    loaded.add_special_tokens(["<image>"])
    loaded.save(str(folder / "tokenizer.json"))
    return folder, size


def test_an_added_token_above_the_vocabulary_is_refused_only_where_documents_have_it(
    tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, size = _with_added(tmp_path / "t", tokenizer_dir)
    code, text = run(tmp_path, folder, "--vocab-size", str(size))
    assert code == ExitCode.OK, text
    monkeypatch.setitem(globals(), "TEXTS", [*TEXTS[:150], "an <image> here", *TEXTS])
    (tmp_path / "again").mkdir()
    code, text = run(tmp_path / "again", folder, "--vocab-size", str(size), documents=300)
    assert code == ExitCode.BAD_DATA
    assert f"a.jsonl has token id {size}, and model.vocabSize is {size}" in text


def test_a_tokenizer_that_transformers_reads_otherwise_is_refused(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes((tokenizer_dir / "tokenizer.json").read_bytes())
    code, text = run(tmp_path, folder)
    assert code == ExitCode.BAD_DATA
    assert text.startswith("data.tokenizer.tokenizerModel: ")


def test_the_index_is_built_only_where_it_can_be_kept(
    tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Any] = []
    for module in (prepare, sources_command):
        monkeypatch.setattr(module, "build_index", lambda _, into: built.append(into) or "built")
    assert run(tmp_path, tokenizer_dir)[0] == ExitCode.OK
    assert not built
    assert run(tmp_path, tokenizer_dir, "--index")[0] == ExitCode.OK
    assert built == [None]
    assert run(tmp_path, tokenizer_dir, "--index-dir", "/data/prepared/index/run")[0] == ExitCode.OK
    assert built == [None, Path("/data/prepared/index/run")]


def test_a_folder_too_small_for_its_split_is_refused_before_the_index_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "build_index", lambda *_: pytest.fail("Megatron would not return"))
    for number, text in enumerate(TEXTS[:20]):
        (tmp_path / f"{number}.txt").write_text(text)
    words = ["--source", str(tmp_path), "--include", "*.txt", "--output-prefix", str(tmp_path / "out")]
    words += ["--tokenizer-dir", str(tmp_path / "t"), "--tokenizer-vocab-size", "300", "--"]
    words += ["--seq-length", "8", "--train-iters", "1", "--global-batch-size", "1", "--split", "99,1,0"]
    code, text, _ = _run([*words, "--data-path", str(tmp_path / "out_text_document")])
    assert code == ExitCode.BAD_DATA
    assert text.startswith(
        "data.prepare.source: data.split 99,1,0 leaves none of its 20 documents to validation"
    )


def test_code_of_a_tokenizer_is_run_only_with_megatrons_flag(
    tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = with_own_code(tmp_path, tokenizer_dir, monkeypatch)
    code, text = run(tmp_path, folder)
    assert (code, "custom code" in text) == (ExitCode.BAD_DATA, True)
    code, text = run(tmp_path, folder, trust_remote_code="")
    assert code == ExitCode.OK, text
