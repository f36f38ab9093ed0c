"""Folders of samples to fine-tune on are checked by megatron-prepare with Megatron-Bridge's own functions."""

import importlib.util
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.bridge import line_index
from megatron_trainer.data import check_root
from megatron_trainer.data.prepare import _run

from tests.trainer.chat_corpus import GENERATION, LLAMA, lines, openai, sharegpt, write_tokenizer

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None,
    reason="what Megatron-Bridge imports is not installed: run make bridge-training",
)
ANSWER = {"input": "what is it?", "output": "a sample"}
CHAT = openai("who are you?", "a bot")
STRICT = (
    "{% for message in messages %}{% if message['role'] == 'robot' %}"
    "{{ raise_exception('robot is no role') }}{% endif %}{% endfor %}" + GENERATION
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with 10 samples to train on, and 4 for validation."""
    root = tmp_path / "answers"
    root.mkdir()
    (root / "training.jsonl").write_text(lines([ANSWER] * 10))
    (root / "validation.jsonl").write_text(lines([ANSWER] * 4))
    return root


def check(root: Path, *own: str, template: str | None = LLAMA, **values: Any) -> tuple[ExitCode, str]:
    """What the check ends with of a run that reads 8 samples, 4 an iteration, and evaluates."""
    tokenizer = root.parent / "tokenizer"
    if not tokenizer.exists():
        write_tokenizer(tokenizer, template)
    flags = {"tokenizer-dir": tokenizer, "batch": 4, "samples": 8, **values}
    words = ["--check-root", str(root), "--evaluates", *own]
    words += [word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    code, text, _ = _run(words)
    return code, text


def refused(root: Path, *own: str, **values: Any) -> str:
    code, text = check(root, *own, **values)
    assert code == ExitCode.BAD_DATA, text
    return text


def test_answers_that_suffice_pass(folder: Path) -> None:
    code, text = check(folder)
    assert code == ExitCode.OK, text
    counts = "10 samples for training, 4 for validation; those for training are read once"
    assert text == f"{folder} is checked: {counts}"


@pytest.mark.parametrize("form", [openai, sharegpt])
def test_chats_of_both_forms_pass(folder: Path, form: Any) -> None:
    for name in ("training", "validation"):
        (folder / f"{name}.jsonl").write_text(lines([form("who are you?", "a bot")] * 10))
    code, text = check(folder, lines="chat")
    assert code == ExitCode.OK, text


def test_a_file_that_is_missing_or_empty_is_named_with_what_is_there(folder: Path) -> None:
    (folder / "validation.jsonl").rename(folder / "valid.jsonl")
    text = refused(folder)
    assert text.startswith(
        f"data.datasetRoot: {folder} has no validation.jsonl, it has training.jsonl, valid"
    )
    assert text.endswith("write validation.jsonl there, a sample a line, or set training.evalIters: 0")
    (folder / "validation.jsonl").touch()
    assert "validation.jsonl is empty; write" in refused(folder)
    assert "nowhere is not a folder; copy the samples there" in refused(folder / "nowhere")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"input": "a"', "training.jsonl:11: Expecting ',' delimiter"),
        ('["a"]', "training.jsonl:11: it is not an object"),
        ('{"input": "a"}', "training.jsonl:11: Prompt-completion rows must contain the configured"),
        ('{"input": "a", "output": 3}', "training.jsonl:11: Prompt-completion columns must contain strings"),
        (json.dumps(CHAT), "training.jsonl:11: Prompt-completion preprocessing requires paired text columns"),
        ("\xff", "training.jsonl:11: 'utf-8' codec can't decode"),
        ("\r\n", "training.jsonl:11: Expecting value"),
    ],
)
def test_a_line_that_the_run_could_not_read_is_named(folder: Path, line: str, problem: str) -> None:
    with (folder / "training.jsonl").open("ab") as stream:
        stream.write(line.encode("latin-1"))
    text = refused(folder)
    assert problem in text
    assert text.endswith("; correct the line, or remove it")


def test_the_ends_of_lines_are_written_for_rank_0(folder: Path, tmp_path: Path) -> None:
    ends = tmp_path / "checkpoints/run/data-cache"
    code, text = check(folder, "--lines-dir", str(ends))
    assert code == ExitCode.OK, text
    for name, count in (("training.jsonl", 10), ("validation.jsonl", 4)):
        file = folder / name
        found = line_index.read_ends(file, line_index.file_of_ends(file, ends))
        assert found is not None
        assert len(found) == count


@pytest.mark.parametrize("elsewhere", [False, True])
def test_samples_are_packed_where_the_run_looks_for_them_or_elsewhere(
    folder: Path, tmp_path: Path, elsewhere: bool
) -> None:
    own, other = tmp_path / "run/packed", tmp_path / "prepared/index/run"
    words = ["--packed-folder", str(own), "--seq-length", "32", "--seed", "7"]
    code, text = check(folder, *words, *(["--index-dir", str(other)] if elsewhere else []))
    assert code == ExitCode.OK, text
    assert "; packed in " in text
    assert len(list((other if elsewhere else own).rglob("*.idx.parquet"))) == 2
    assert own.exists() != elsewhere


def test_samples_are_not_packed_to_sequences_of_an_unknown_length(folder: Path) -> None:
    code, text = check(folder, "--packed-folder", str(folder / "packed"))
    assert (code, text) == (
        ExitCode.USAGE,
        "--packed-folder needs --seq-length, the tokens of a sequence",
    )


def bridge_reads(file: Path) -> list[Any]:
    """What Megatron-Bridge's data set has of a file."""
    from megatron_trainer.weights import cpu_model

    cpu_model.import_bridge()
    from megatron.bridge.data.datasets.utils import _JSONLMemMapDataset

    # It keeps an index of a path, whatever becomes of the file.
    index = tempfile.mkdtemp(dir=file.parent.parent)
    dataset = _JSONLMemMapDataset([str(file)], tokenizer=None, index_mapping_dir=index)
    return [dataset[number] for number in range(len(dataset))]


def test_empty_lines_are_taken_at_the_end_alone_as_by_bridge(folder: Path) -> None:
    file = folder / "training.jsonl"
    text = file.read_text()
    assert text.endswith("}\n")
    file.write_text(f"{text}\n\n")
    code, ended = check(folder)
    assert code == ExitCode.OK, ended
    assert "10 samples for training" in ended
    assert bridge_reads(file) == [ANSWER] * 10
    file.write_text(f"{text}\n\n{text}")
    assert refused(folder) == f"data.datasetRoot: {file}:11: the line is empty; remove it"
    with pytest.raises(json.JSONDecodeError):
        bridge_reads(file)


def test_a_byte_order_mark_is_refused_as_by_bridge(folder: Path) -> None:
    file = folder / "validation.jsonl"
    file.write_text(file.read_text(), encoding="utf-8-sig")
    text = refused(folder)
    assert text.startswith(f"data.datasetRoot: {file}:1: the line begins with a byte order mark")
    assert text.endswith("; write the file as UTF-8 without one")
    with pytest.raises(json.JSONDecodeError, match="BOM"):
        bridge_reads(file)


def test_a_folder_of_chats_needs_the_chat_template(folder: Path) -> None:
    text = refused(folder, lines="chat", template=None)
    assert "/tokenizer has no chat template; add chat_template.jinja there" in text


def test_a_later_chat_that_the_template_refuses_is_named(folder: Path) -> None:
    without_roles = {"messages": [{"role": "robot", "content": "a bot"}]}
    for name in ("training", "validation"):
        (folder / f"{name}.jsonl").write_text(lines([CHAT] * 10))
    code, text = check(folder, lines="chat", template=STRICT)
    assert code == ExitCode.OK, text
    assert text.endswith("; the chat template takes the first 10 lines of a file")
    (folder / "validation.jsonl").write_text(lines([*[CHAT] * 6, without_roles, CHAT]))
    text = refused(folder, lines="chat")
    assert "validation.jsonl:7: the chat template refuses" in text
    assert "robot is no role" in text


def test_lines_are_rendered_up_to_a_number(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_root, "TOKENIZED", 6)
    for name in ("training", "validation"):
        (folder / f"{name}.jsonl").write_text(lines([*[CHAT] * 6, openai("who are you?")]))
    code, text = check(folder, lines="chat", template=GENERATION)
    assert code == ExitCode.OK, text
    assert text.endswith("; the chat template takes the first 6 lines of a file")


def test_later_chats_of_which_the_loss_counts_nothing_are_counted(folder: Path) -> None:
    for name in ("training", "validation"):
        (folder / f"{name}.jsonl").write_text(lines([*[CHAT] * 6, openai("who are you?")]))
    code, text = check(folder, lines="chat", template=GENERATION)
    assert code == ExitCode.OK, text
    assert text.endswith("the first 7 lines of a file, and the loss counts no token of 2 of them")


@pytest.mark.parametrize("form", [openai, sharegpt])
def test_an_answer_that_is_not_to_be_learned_is_named(folder: Path, form: Any) -> None:
    chat = form("who are you?", "a bot")
    next(iter(chat.values()))[1]["weight"] = 0
    (folder / "training.jsonl").write_text(lines([*[CHAT] * 6, chat]))
    text = refused(folder, lines="chat")
    assert "training.jsonl:7: a message of " in text
    assert 'has "weight": 0, and the loss counts every answer as a whole; remove "weight", or' in text


def test_a_chat_without_an_answer_is_refused(folder: Path) -> None:
    (folder / "training.jsonl").write_text(lines([openai("who are you?")] * 10))
    text = refused(folder, lines="chat", template=GENERATION)
    assert "training.jsonl:1: " in text


LONG = {"input": "context " * 4 + "how many?", "output": "seven"}
LOST = "lose the end of the question, and what then does not fit of the answer"


@pytest.mark.parametrize("packing", [False, True])
def test_questions_that_a_run_would_cut_are_counted(folder: Path, tmp_path: Path, packing: bool) -> None:
    for name in ("training", "validation"):
        (folder / f"{name}.jsonl").write_text(lines([*[ANSWER] * 6, LONG]))
    words = ["--packed-folder", str(tmp_path / "packed")] if packing else []
    code, text = check(folder, *words, seq_length=47, batch=1, samples=1)
    assert code == ExitCode.OK, text
    assert "of the first 7 lines of each file, 2 are longer than training.seqLength 47 and " + LOST in text
    code, text = check(folder, *words, seq_length=48, batch=1, samples=1)
    assert (code, "warning" in text) == (ExitCode.OK, False), text


def test_questions_that_are_all_cut_are_refused(folder: Path) -> None:
    (folder / "training.jsonl").write_text(lines([LONG] * 10))
    text = refused(folder, seq_length=47)
    assert f"all of the first 10 lines of {folder}/training.jsonl are longer than training.seqLength" in text
    assert text.endswith(f"and would {LOST}; set a larger training.seqLength, or shorten them")


def test_chats_that_a_run_would_cut_are_counted(folder: Path) -> None:
    for name in ("training", "validation"):
        (folder / f"{name}.jsonl").write_text(lines([*[CHAT] * 6, openai("who are you?", "a bot " * 40)]))
    code, text = check(folder, lines="chat", template=GENERATION, seq_length=200)
    assert code == ExitCode.OK, text
    assert text.endswith(
        "; the chat template takes the first 7 lines of a file; warning: of the first 7 lines of each file, "
        "2 are longer than training.seqLength 200 and lose their end"
    )


def test_a_tokenizer_that_is_not_there_is_refused(folder: Path) -> None:
    text = refused(folder, tokenizer_dir="/data/nowhere")
    assert text.startswith("data.tokenizer.tokenizerModel: ")


def test_a_tokenizer_with_more_ids_than_the_model_is_refused(folder: Path) -> None:
    text = refused(folder, vocab_size=100)
    assert "and model.vocabSize is 100; name the model's own tokenizer" in text


def test_too_few_samples_are_refused_with_what_to_change(folder: Path) -> None:
    text = refused(folder, samples=20, max_epochs=1)
    assert text == (
        "data.maxEpochs: the run reads 20 samples, and 10 are there: 3 epochs, at most 1; "
        "set data.maxEpochs: 3, a smaller training.trainIters, or add samples"
    ), "an epoch is two whole iterations of 4"
    assert check(folder, samples=20, max_epochs=3)[0] == ExitCode.OK
    code, text = check(folder, samples=20)
    assert (code, text.endswith("; those for training are read 2.5 times")) == (ExitCode.OK, True), text
    text = refused(folder, batch=5, samples=5)
    assert "validation.jsonl has 4 samples, and an iteration takes 5; add samples, or set a smaller" in text
    assert text.endswith(", or training.evalIters: 0")


def test_latents_are_checked_by_their_files(folder: Path) -> None:
    text = refused(folder, lines="latents")
    assert text == (
        f"data.datasetRoot: {folder} has no tar files with samples of latents; copy them there, or correct "
        "the path"
    )
    (folder / "a.tar").write_bytes(b"no tar file" * 99)
    assert f"{folder}/a.tar: " in refused(folder, lines="latents")
