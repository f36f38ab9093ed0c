"""megatron-prepare on small folders, with the real tokenizer library and Megatron's own builder and
reader."""

import json
from pathlib import Path

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.data import prepare, tokenizer
from megatron_trainer.data.prepare import CannotPrepare

TEXTS = {
    "a.py": "def add(a, b):\n    return a + b\n" * 20,
    "pkg/b.py": "class Thing:\n    name = 'thing'\n" * 20,
    "notes.txt": "not asked for",
    "empty.py": "\n",
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for name, text in TEXTS.items():
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "source" / "binary.py").write_bytes(b"\xff\xfe\x00\x80")
    return tmp_path / "source"


def request(source: Path, *extra: str) -> prepare.Request:
    out = source.parent / "data"
    return prepare.read_request(
        [
            *("--source", str(source), "--include", "**/*.py"),
            *("--output-prefix", str(out / "code"), "--tokenizer-dir", str(out / "tokenizer")),
            *("--tokenizer-vocab-size", "300", "--append-eod", *extra),
        ]
    )


def test_what_is_written_reads_back_as_the_documents_in_order_each_with_its_end(source: Path) -> None:
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    asked = request(source)
    result = prepare.build(asked)
    loaded, eod = tokenizer.load(asked.tokenizer_dir)
    dataset = IndexedDataset(str(asked.data))
    documents = [dataset[index].tolist() for index in range(len(dataset))]
    assert [document[-1] for document in documents] == [eod, eod]
    assert [loaded.decode(document[:-1]) for document in documents] == [TEXTS["a.py"], TEXTS["pkg/b.py"]]
    assert (result.documents, result.tokens) == (2, sum(len(document) for document in documents))
    assert result.data_path == str(source.parent / "data" / "code_text_document")


def test_a_finished_result_is_not_made_again(source: Path) -> None:
    asked = request(source)
    made = prepare.build(asked)
    assert prepare.finished(asked) == made


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_a_result_that_lost_a_part_is_made_again(source: Path, suffix: str) -> None:
    asked = request(source)
    prepare.build(asked)
    path = Path(f"{asked.data}{suffix}")
    path.write_bytes(path.read_bytes()[:-1])
    assert prepare.finished(asked) is None


def test_a_result_of_other_settings_is_refused_and_the_mend_is_told(source: Path) -> None:
    prepare.build(request(source))
    with pytest.raises(CannotPrepare, match=r"remove it or choose another --output-prefix"):
        prepare.finished(request(source, "--include", "*.txt"))


def test_a_tokenizer_that_is_there_is_used(source: Path) -> None:
    prepare.build(request(source))
    before = (source.parent / "data" / "tokenizer" / "tokenizer.json").read_bytes()
    (source / "c.py").write_text("something else entirely = 1\n" * 50)
    prepare.build(request(source))
    assert (source.parent / "data" / "tokenizer" / "tokenizer.json").read_bytes() == before


def test_a_tokenizer_of_another_format_is_refused_not_overwritten(source: Path) -> None:
    asked = request(source)
    asked.tokenizer_dir.mkdir(parents=True)
    (asked.tokenizer_dir / "tokenizer.model").write_bytes(b"sentencepiece")
    with pytest.raises(CannotPrepare, match=r"has tokenizer\.model but no tokenizer\.json") as refusal:
        prepare.build(asked)
    assert refusal.value.code == ExitCode.BAD_DATA


def test_json_lines_hold_one_document_a_line(source: Path) -> None:
    path = source / "more.jsonl"
    path.write_text('{"text": "one"}\n\n{"text": "two", "id": 2}\n')
    assert list(prepare.documents([path])) == ["one", "two"]


def test_a_json_line_without_text_is_named_by_its_number(source: Path) -> None:
    path = source / "more.jsonl"
    path.write_text('{"text": "one"}\n{"body": "two"}\n')
    with pytest.raises(CannotPrepare, match=r"more\.jsonl line 2 is not an object with \"text\""):
        list(prepare.documents([path]))


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["--source", "/nowhere"], ExitCode.BAD_DATA, "--source /nowhere is not a folder"),
        (["--include", "**/*.rs"], ExitCode.OK, ""),
        (
            ["--tokenizer-vocab-size", "256"],
            ExitCode.USAGE,
            "--tokenizer-vocab-size is 256; give at least 257",
        ),
        (["--workers", "0"], ExitCode.USAGE, "--workers is 0; give 1 or more"),
        (["--worker", "1"], ExitCode.USAGE, "unknown arguments: --worker 1"),
    ],
)
def test_the_command_ends_with_a_code_and_one_clear_line(
    argv: list[str],
    code: ExitCode,
    message: str,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = source.parent / "termination"
    monkeypatch.setenv("MEGATRON_TERMINATION_LOG", str(log))
    out = source.parent / "data"
    with pytest.raises(SystemExit) as end:
        prepare.main(
            [
                *("--source", str(source), "--include", "*.py", "--output-prefix", str(out / "code")),
                *("--tokenizer-dir", str(out / "tokenizer"), "--tokenizer-vocab-size", "300", *argv),
            ]
        )
    assert end.value.code == code
    told = json.loads(log.read_text())
    assert told["exitCode"] == code
    assert told["message"].startswith(message)
    assert "Traceback" not in capsys.readouterr().err


def test_no_matching_file_names_the_globs(source: Path) -> None:
    asked = prepare.read_request(
        [
            *("--source", str(source), "--include", "*.rs", "--include", "*.go"),
            *("--output-prefix", "x", "--tokenizer-dir", "y"),
        ]
    )
    with pytest.raises(CannotPrepare, match=r"matches \*\.rs or \*\.go"):
        prepare.files_of(asked)
