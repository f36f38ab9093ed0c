"""Datasets of `data.blend` are checked against a run: real files of Megatron, whole and damaged."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_contract.progress import ProgressReport
from megatron_trainer.data import check_blend, check_command, indexed_files
from megatron_trainer.data.check_meter import CheckMeter
from megatron_trainer.data.indexed_files import read_header
from megatron_trainer.data.prepare import _run

from tests.unit.trainer.data.corpus import with_own_code

RUN = {
    "seq-length": "64",
    "train-iters": "10",
    "global-batch-size": "2",
    "eval-iters": "1",
    "split": "90,10,0",
}
DOCUMENTS, TOKENS = 200, 32
"""Of each dataset; so an epoch of the training split has (180 * 32 - 1) // 64 = 89 samples."""


def write(prefix: Path, largest: int = 300, dtype: type[Any] = np.uint16) -> Path:
    """A dataset by Megatron's own builder, with one id that is `largest`."""
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for number in range(DOCUMENTS):
        ids = torch.arange(TOKENS, dtype=torch.int64)
        ids[0] = largest if number == DOCUMENTS // 2 else 0
        builder.add_document(ids, [TOKENS])
    builder.finalize(f"{prefix}.idx")
    return prefix


def run(*prefixes: Path, own: tuple[str, ...] = (), **flags: str) -> tuple[ExitCode, str]:
    """What the check ends with for a blend of these datasets, of the weights 1, 2, ..."""
    known = prefixes[0].parent / "prepared" / "checked"
    words = ["--check-blend", json.dumps(list(map(str, prefixes))), "--known-dir", str(known), *own, "--"]
    for name, value in (RUN | {name.replace("_", "-"): value for name, value in flags.items()}).items():
        words += [f"--{name}", value]
    weighted = [word for number, prefix in enumerate(prefixes, 1) for word in (str(number), str(prefix))]
    code, text, _ = _run([*words, "--data-path", *(weighted if len(prefixes) > 1 else weighted[1:])])
    return code, text


def refused(*prefixes: Path, own: tuple[str, ...] = (), **flags: str) -> str:
    code, text = run(*prefixes, own=own, **flags)
    assert code == ExitCode.BAD_DATA, text
    return text


def test_whole_datasets_that_suffice_pass(tmp_path: Path) -> None:
    code, text = run(write(tmp_path / "a"), write(tmp_path / "b"), own=("--vocab-size", "301"))
    assert code == ExitCode.OK, text
    times = "data.blend[1] is read 0.16 times, data.blend[0] is read 0.079 times"
    assert text == f"2 datasets are checked: 400 documents, 12,800 tokens; {times}"


def test_a_dataset_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    write(tmp_path / "web_text_document")
    text = refused(tmp_path / "web")
    assert text.startswith(f"data.blend[0].path: {tmp_path}/web.idx does not exist; {tmp_path} has ")
    assert "has web_text_document; name a dataset by the path of its .bin and .idx file" in text
    assert f"there is no folder {tmp_path}/nowhere; copy the" in refused(tmp_path / "nowhere" / "web")
    (tmp_path / "web_text_document.bin").unlink()
    assert "web_text_document.bin does not exist" in refused(tmp_path / "web_text_document")


@pytest.mark.parametrize(
    ("end", "keeps", "problem"),
    [
        (".bin", -1, "a.bin has 12,799 bytes, and a.idx describes 12,800: it is cut off; copy both files"),
        (".bin", 0, "a.bin has 0 bytes, and a.idx describes 12,800: it is cut off"),
        (".idx", -1, "a.idx has 4,041 bytes, and by its header it has 4,042: it is cut off or damaged"),
        (".idx", 20, "a.idx does not begin as an index of Megatron; copy it again"),
        (".idx", 0, "a.idx does not begin as an index of Megatron"),
    ],
)
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, end: str, keeps: int, problem: str) -> None:
    path = Path(f"{write(tmp_path / 'a')}{end}")
    path.write_bytes(path.read_bytes()[:keeps])
    text = refused(tmp_path / "a")
    assert text.startswith("data.blend[0].path: ")
    assert problem in text


def test_files_of_two_datasets_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a")
    Path(f"{write(tmp_path / 'b', dtype=np.int32)}.bin").replace(tmp_path / "a.bin")
    assert "a.bin has 25,600 bytes, and a.idx describes 12,800: it is of another" in refused(tmp_path / "a")


@pytest.mark.parametrize("damaged", [0, indexed_files.HEADER + 4, indexed_files.HEADER + 4 * DOCUMENTS + 8])
def test_an_index_with_a_byte_that_changed_is_refused(tmp_path: Path, damaged: int) -> None:
    """In the magic, in the length of a sequence, and in where one begins."""
    path = Path(f"{write(tmp_path / 'a')}.idx")
    content = bytearray(path.read_bytes())
    content[damaged] ^= 1
    path.write_bytes(content)
    assert "a.idx " in refused(tmp_path / "a")


def test_raw_text_in_place_of_an_index_is_refused(tmp_path: Path) -> None:
    for end in (".bin", ".idx"):
        (tmp_path / f"a{end}").write_text('{"text": "a document"}\n' * 9)
    assert "list the raw documents in data.sources" in refused(tmp_path / "a")


def test_an_id_beyond_the_vocabulary_is_refused_with_the_size_that_holds_it(tmp_path: Path) -> None:
    write(tmp_path / "a"), write(tmp_path / "b", largest=700)
    text = refused(tmp_path / "a", tmp_path / "b", own=("--vocab-size", "700"))
    assert text.startswith(
        f"data.blend[1].path: {tmp_path}/b.bin has token id 700, and model.vocabSize is 700;"
    )
    assert "set model.vocabSize: 701" in text
    assert run(tmp_path / "a", tmp_path / "b", own=("--vocab-size", "701"))[0] == ExitCode.OK


def test_a_negative_id_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a", largest=-5, dtype=np.int32)
    assert "a.bin has token id -5; it is damaged" in refused(tmp_path / "a", own=("--vocab-size", "700"))


def test_an_id_that_the_tokenizer_does_not_have_is_refused(tmp_path: Path, tokenizer_dir: Path) -> None:
    write(tmp_path / "a", largest=5000)
    flags: dict[str, Any] = {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": str(tokenizer_dir)}
    text = refused(tmp_path / "a", **flags)
    assert "has token id 5,000, and the tokenizer has " in text
    assert text.endswith("name the tokenizer that it was prepared with in data.tokenizer")
    write(tmp_path / "a", largest=7)
    assert run(tmp_path / "a", **flags)[0] == ExitCode.OK


def test_a_tokenizer_that_does_not_load_offline_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a")
    (tmp_path / "t").mkdir()
    flags: dict[str, Any] = {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": str(tmp_path / "t")}
    text = refused(tmp_path / "a", **flags)
    assert text.startswith("data.tokenizer.tokenizerModel: transformers cannot load ")
    text = refused(tmp_path / "a", **flags | {"tokenizer_model": "/data/nowhere"})
    assert text.startswith("data.tokenizer.tokenizerModel: /data/nowhere is not a folder; copy the tokenizer")
    text = refused(tmp_path / "a", tokenizer_type="GPT2BPETokenizer", vocab_file="/data/vocab.json")
    assert text.startswith("data.tokenizer.vocabFile: /data/vocab.json does not exist")
    sentencepiece: dict[str, Any] = {
        "tokenizer_type": "SentencePieceTokenizer",
        "tokenizer_model": "/data/a.model",
    }
    assert "/data/a.model does not exist; name the .model file" in refused(tmp_path / "a", **sentencepiece)


def test_code_of_a_tokenizer_is_run_only_with_megatrons_flag(
    tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the run, whose `megatronArgs` have the flag."""
    folder = with_own_code(tmp_path, tokenizer_dir, monkeypatch)
    write(tmp_path / "a")
    flags: dict[str, Any] = {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": str(folder)}
    assert "custom code" in refused(tmp_path / "a", **flags)
    ended, text = run(tmp_path / "a", trust_remote_code="", **flags)
    assert ended == ExitCode.OK, text


HUB = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", "meta-llama/Llama-3.1-8B"]


def of_a_hub(prefix: Path, **environment: str) -> tuple[int, str]:
    """How the check ends in a process of its own: the library reads these variables when it is imported."""
    words = ["--check-blend", json.dumps([str(prefix)]), "--known-dir", str(prefix.parent / "known"), "--"]
    log = prefix.parent / "termination-log"
    base = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    ended = subprocess.run(
        [sys.executable, "-m", "megatron_trainer.data.prepare", *words, *HUB, "--data-path", str(prefix)],
        env=base | {"MEGATRON_TERMINATION_LOG": str(log)} | environment,
        check=False,
    )
    return ended.returncode, json.loads(log.read_text())["message"]


def test_a_name_on_a_hub_is_left_to_a_run_that_may_ask_it(tmp_path: Path) -> None:
    write(tmp_path / "a", largest=5000)
    code, text = of_a_hub(tmp_path / "a")
    assert code == ExitCode.OK, text


def test_a_name_on_a_hub_is_refused_where_an_offline_run_would_not_find_it(tmp_path: Path) -> None:
    write(tmp_path / "a")
    code, text = of_a_hub(tmp_path / "a", HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path / "empty"))
    assert code == ExitCode.BAD_DATA
    assert text.startswith("data.tokenizer.tokenizerModel: meta-llama/Llama-3.1-8B is a name on a hub, ")
    assert 'set a folder on the data volume, or env: {HF_HUB_OFFLINE: "0"}' in text


def test_a_tokenizer_in_the_cache_is_checked_by_its_name(tmp_path: Path, tokenizer_dir: Path) -> None:
    """In the layout of the hub's library."""
    model = tmp_path / "home" / "hub" / "models--meta-llama--Llama-3.1-8B"
    shutil.copytree(tokenizer_dir, model / "snapshots" / "0123abcd")
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("0123abcd")
    (model / "snapshots" / "0123abcd" / "config.json").write_text('{"model_type": "llama"}')
    write(tmp_path / "a", largest=7), write(tmp_path / "b", largest=5000)
    code, text = of_a_hub(tmp_path / "a", HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path / "home"))
    assert code == ExitCode.OK, text
    code, text = of_a_hub(tmp_path / "b", HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path / "home"))
    assert "has token id 5,000, and the tokenizer has " in text


def test_a_run_that_reads_a_dataset_too_often_is_refused_with_what_to_change(tmp_path: Path) -> None:
    write(tmp_path / "a"), write(tmp_path / "b")
    once = ("--max-epochs", "1")
    text = refused(tmp_path / "a", tmp_path / "b", own=once, train_iters="150")
    assert text.startswith(
        "data.blend[0].weight: the run reads 100 samples of it (0.333 of 300), an epoch has"
    )
    assert "set data.maxEpochs: 2, a smaller weight or training.trainIters, or add documents" in text
    allowed = ("--max-epochs", "3")
    assert run(tmp_path / "a", tmp_path / "b", own=allowed, train_iters="150")[0] == ExitCode.OK
    assert "data.split 99,1,0 leaves" not in refused(tmp_path / "a", seq_length="9999")


def test_the_weights_of_a_dataset_that_is_listed_twice_are_added(tmp_path: Path) -> None:
    """Megatron draws from both entries: 50 and 100 samples of `a`, and 150 of `b`."""
    a, b = write(tmp_path / "a"), write(tmp_path / "b")
    text = refused(a, a, b, own=("--max-epochs", "1"), train_iters="150")
    assert text.startswith("data.blend[0].weight: the run reads 150 samples of it (0.5 of 300), an epoch has")
    code, text = run(a, a, b, own=("--max-epochs", "2"), train_iters="150")
    assert code == ExitCode.OK, text
    assert text.startswith("2 datasets are checked: 400 documents")


def test_without_a_limit_a_run_may_read_a_dataset_often_and_the_message_has_how_often(tmp_path: Path) -> None:
    parts = [write(tmp_path / name) for name in "abcdef"]
    code, text = run(*parts[:2], train_iters="320")
    assert code == ExitCode.OK, text
    # 427 and 214 samples, by their weights 2 and 1, of 89 an epoch.
    assert text.endswith("; data.blend[1] is read 4.8 times, data.blend[0] is read 2.4 times")
    code, text = run(*parts, train_iters="89")
    assert text.count("is read") == 4, "the message is that of a condition"
    assert text.endswith("data.blend[2] is read 0.29 times, 2 others less often")
    code, text = run(parts[0], own=("--max-epochs", "0"))
    assert (code, "--max-epochs is 0; set 1 or more" in text) == (ExitCode.USAGE, True)


def test_a_dataset_is_read_again_only_when_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []

    def counted(files: Any, step: Any) -> tuple[int, int]:
        read.append(files.ids_file)
        return indexed_files.extremes(files, step)

    monkeypatch.setattr(check_blend, "extremes", counted)
    own = ("--vocab-size", "301")
    a, b = write(tmp_path / "a"), write(tmp_path / "b")
    assert run(a, b, own=own)[0] == ExitCode.OK
    code, text = run(a, b, own=own, train_iters="11")
    assert (code, read) == (ExitCode.OK, [tmp_path / "a.bin", tmp_path / "b.bin"]), text
    assert ", whose ids were checked before; " in text
    assert "has token id 300" in refused(a, own=("--vocab-size", "300")), "what is known has the id"
    os.utime(tmp_path / "b.bin", ns=(1, 1))
    assert run(a, b, own=own)[0] == ExitCode.OK
    assert read[2:] == [tmp_path / "b.bin"]


def test_a_type_that_holds_no_other_ids_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_blend, "extremes", lambda *_: pytest.fail("was read"))
    assert run(write(tmp_path / "a"), own=("--vocab-size", "65536"))[0] == ExitCode.OK


def test_the_blocks_of_a_file_are_all_read_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexed_files, "_BLOCK", 1000)
    files = read_header(check_blend.BlendPart("data.blend[0]", write(tmp_path / "a", largest=999)))
    meter = CheckMeter()
    meter.begin(files.bytes)
    assert indexed_files.extremes(files, meter.step) == (0, 999)
    report = ProgressReport.parse(meter.report().to_json())
    assert report.preparation is not None
    assert (report.preparation.bytes_done, report.preparation.step) == (12_800, "check")


def test_a_volume_that_cannot_be_written_is_checked_and_what_became_of_the_index_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests may run as root, for whom no folder is read-only: a file is where the folder would be."""
    write(tmp_path / "a")
    (tmp_path / "prepared").write_text("")
    indexes: list[Any] = []
    monkeypatch.setattr(check_command, "build_index", lambda *words: indexes.append(words) or "no index")
    own = ("--vocab-size", "301", "--index-dir", "/data/prepared/index/run")
    assert run(tmp_path / "a", own=own) == (
        ExitCode.OK,
        "1 dataset is checked: 200 documents, 6,400 tokens; data.blend[0] is read 0.22 times; no index",
    )
    assert indexes[0][1] == Path("/data/prepared/index/run")
