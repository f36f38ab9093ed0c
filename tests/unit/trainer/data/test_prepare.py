"""megatron-prepare on small folders, with the real tokenizer library and Megatron's own dataset builder
and reader."""

import json
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.data import check, prepare, tokenizer
from megatron_trainer.data.index_process import build_index
from megatron_trainer.data.preparation_error import PreparationError
from megatron_trainer.data.prepare_options import parse_options
from megatron_trainer.volume_paths import left_volume

from tests.unit.trainer.data.source_files import TEXTS, options, write_source


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_source(tmp_path)


def test_the_dataset_contains_the_documents_in_order_each_with_the_end_token(source: Path) -> None:
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    requested = options(source)
    result = prepare.build(requested)
    loaded, eod = tokenizer.load(requested.tokenizer_dir)
    dataset = IndexedDataset(str(requested.data))
    documents = [dataset[index].tolist() for index in range(len(dataset))]
    assert [document[-1] for document in documents] == [eod, eod]
    assert [loaded.decode(document[:-1]) for document in documents] == [TEXTS["a.py"], TEXTS["pkg/b.py"]]
    assert (result.documents, result.tokens) == (2, sum(len(document) for document in documents))
    assert result.data_path == str(source.parent / "data" / "code_text_document")


def test_a_link_out_of_the_volume_is_not_read(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = source.parent / "token"
    secret.write_text("secret")
    (source / "pkg" / "c.py").symlink_to(secret)
    monkeypatch.setattr(prepare, "left_volume", partial(left_volume, volumes=[source]))
    with pytest.raises(PreparationError, match=r"c\.py links to .*/token, outside of its volume") as refused:
        prepare.build(options(source))
    assert refused.value.code == ExitCode.BAD_DATA


def test_an_existing_result_is_returned(source: Path) -> None:
    requested = options(source)
    built = prepare.build(requested)
    assert prepare.find_result(requested) == built


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_a_truncated_result_is_not_returned(source: Path, suffix: str) -> None:
    requested = options(source)
    prepare.build(requested)
    path = Path(f"{requested.data}{suffix}")
    path.write_bytes(path.read_bytes()[:-1])
    assert prepare.find_result(requested) is None


def test_a_preparation_that_fails_half_way_leaves_nothing(source: Path) -> None:
    built = options(source)
    prepare.build(built)
    before = sorted(built.data.parent.iterdir())
    lines = ['{"text": "one"}\n'] * 1000
    (source / "more.jsonl").write_text("".join([*lines, '{"text": 1}\n']))
    with pytest.raises(PreparationError, match=r"more\.jsonl line 1001"):
        prepare.build(options(source, "--include", "*.jsonl"))
    assert sorted(built.data.parent.iterdir()) == before


def test_a_preparation_removes_what_killed_ones_have_left(source: Path) -> None:
    requested = options(source)
    folder = requested.data.parent
    folder.mkdir()
    for suffix in (".bin", ".idx"):
        (folder / f".{requested.data.name}.pod-x7k2p.1{suffix}").touch()
        (folder / f".other_text_document.pod-x7k2p.1{suffix}").touch()
    prepare.build(requested)
    kept = {f".other_text_document.pod-x7k2p.1{suffix}" for suffix in (".bin", ".idx")}
    assert {path.name for path in folder.glob(".*")} == kept


def test_a_result_of_other_settings_is_refused_and_another_name_comes_before_deleting_it(
    source: Path,
) -> None:
    prepare.build(options(source))
    with pytest.raises(
        PreparationError, match=r"^data\.prepare\.name \(--output-prefix\): .* was built"
    ) as end:
        prepare.find_result(options(source, "--include", "*.txt"))
    fix = "delete it and code_text_document.bin and .idx"
    assert str(end.value).endswith(f"; set another name, or, if no run reads them, {fix}")


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_a_dataset_that_was_not_prepared_here_is_not_replaced(source: Path, suffix: str) -> None:
    requested = options(source)
    requested.data.parent.mkdir()
    path = Path(f"{requested.data}{suffix}")
    path.write_text("of somebody else")
    with pytest.raises(
        PreparationError, match=r"^data\.prepare\.name .* was not prepared here.* set another name"
    ) as end:
        prepare.find_result(requested)
    assert end.value.code == ExitCode.USAGE
    with pytest.raises(PreparationError, match="was not prepared here"):
        prepare.build(requested)
    assert path.read_text() == "of somebody else"


@pytest.mark.parametrize("renamed", range(4))
def test_a_preparation_that_was_killed_between_its_renames_is_done_again(
    source: Path, monkeypatch: pytest.MonkeyPatch, renamed: int
) -> None:
    requested, replace_file, left = options(source), Path.replace, iter([True] * renamed)

    def replace_or_end(path: Path, target: Path) -> Path:
        if target.name.startswith("code") and not next(left, False):
            raise SystemExit(ExitCode.TERMINATED)
        return replace_file(path, target)

    with monkeypatch.context() as killed:
        killed.setattr(Path, "replace", replace_or_end)
        with pytest.raises(SystemExit):
            prepare.build(requested)
    assert prepare.find_result(requested) is None
    built = prepare.build(requested)
    assert prepare.find_result(requested) == built


def test_an_existing_tokenizer_is_used(source: Path) -> None:
    prepare.build(options(source))
    before = (source.parent / "data" / "tokenizer" / "tokenizer.json").read_bytes()
    (source / "c.py").write_text("something else entirely = 1\n" * 50)
    prepare.build(options(source))
    assert (source.parent / "data" / "tokenizer" / "tokenizer.json").read_bytes() == before


def test_a_tokenizer_of_another_format_is_not_overwritten(source: Path) -> None:
    requested = options(source)
    requested.tokenizer_dir.mkdir(parents=True)
    (requested.tokenizer_dir / "tokenizer.model").write_bytes(b"sentencepiece")
    with pytest.raises(PreparationError, match=r"has tokenizer\.model but no tokenizer\.json") as refusal:
        prepare.build(requested)
    assert refusal.value.code == ExitCode.BAD_DATA


def test_a_tokenizer_that_is_named_and_missing_is_not_replaced_by_a_trained_one(source: Path) -> None:
    requested = replace(options(source), tokenizer_vocab_size=None)
    with pytest.raises(PreparationError, match=r"data/tokenizer has no tokenizer\.json; copy") as refusal:
        prepare.build(requested)
    assert refusal.value.code == ExitCode.BAD_DATA
    assert not requested.tokenizer_dir.exists()


def test_documents_cannot_end_with_an_end_token_that_a_tokenizer_lacks(source: Path) -> None:
    requested = options(source)
    prepare.build(requested)
    (requested.tokenizer_dir / "tokenizer_config.json").write_text("{}")
    with pytest.raises(
        PreparationError, match=r"^data\.prepare\.appendEod \(--append-eod\): .* or set false$"
    ):
        prepare.build(requested)


def test_a_result_with_a_named_tokenizer_is_found_also_if_it_was_made_with_a_size(source: Path) -> None:
    made = prepare.build(options(source))
    assert prepare.find_result(replace(options(source), tokenizer_vocab_size=None)) == made


def test_each_json_line_is_a_document(source: Path) -> None:
    path = source / "more.jsonl"
    path.write_text('{"text": "one"}\n\n{"text": "two", "id": 2}\n')
    assert list(prepare.read_documents([path])) == ["one", "two"]


def test_a_file_of_json_lines_is_not_held_in_memory(source: Path) -> None:
    path = source / "more.jsonl"
    line = json.dumps({"text": "x" * 1000}) + "\n"
    path.write_text(line * 20_000)
    tracemalloc.start()
    try:
        assert sum(len(text) for text in prepare.read_documents([path])) == 20_000_000
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_json_line_that_is_not_utf_8_is_refused_with_its_number(source: Path) -> None:
    path = source / "more.jsonl"
    path.write_bytes(b'{"text": "one"}\n' + b'{"text": "\xff"}\n')
    with pytest.raises(PreparationError, match=r"more\.jsonl line 2 is not UTF-8 at byte 10;") as refused:
        list(prepare.read_documents([path]))
    assert refused.value.code == ExitCode.BAD_DATA


def test_files_that_are_not_text_are_counted_in_the_message_and_named_in_the_log(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = source.parent / "data"
    words = ["--source", str(source), "--include", "**/*.py", "--output-prefix", str(out / "code")]
    words += ["--tokenizer-dir", str(out / "tokenizer"), "--tokenizer-vocab-size", "300"]
    for what in ("is built", "already exists"):
        code, text, _ = prepare._run(words)
        assert (code, what in text) == (ExitCode.OK, True)
        assert text.endswith(" tokens; 1 files are not UTF-8 text and are left out")
    assert f"left out: {source}/binary.py\n" in capsys.readouterr().out


def test_a_json_line_without_text_is_refused_with_its_number(source: Path) -> None:
    path = source / "more.jsonl"
    path.write_text('{"text": "one"}\n{"body": "two"}\n')
    with pytest.raises(PreparationError, match=r"more\.jsonl line 2 is not an object with \"text\""):
        list(prepare.read_documents([path]))


def test_a_json_line_with_a_null_text_is_left_out(source: Path) -> None:
    path = source / "more.jsonl"
    path.write_text('{"text": "one"}\n{"text": null}\n{"text": "two"}\n')
    assert list(prepare.read_documents([path])) == ["one", "two"]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("5", r'"text" at .*/more\.jsonl line 2 is of type int, not a string; correct the line'),
        ('["two", "three"]', r'"text" at .*/more\.jsonl line 2 is of type list, not a string'),
        ('"\\ud83d"', r"more\.jsonl line 2 has \\ud83d without the other half of its pair; remove"),
    ],
)
@pytest.mark.parametrize("has_tokenizer", [False, True])
def test_a_json_line_whose_text_no_tokenizer_takes_is_refused_with_its_number(
    source: Path, value: str, problem: str, has_tokenizer: bool
) -> None:
    if has_tokenizer:
        prepare.build(options(source))
    (source / "more.jsonl").write_text(f'{{"text": "one"}}\n{{"text": {value}}}\n')
    with pytest.raises(PreparationError, match=problem) as refused:
        prepare.build(options(source, "--include", "*.jsonl"))
    assert refused.value.code == ExitCode.BAD_DATA


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (
            ["--source", "/nowhere"],
            ExitCode.BAD_DATA,
            "data.prepare.source (--source): /nowhere is not a folder",
        ),
        (["--include", "**/*.rs"], ExitCode.OK, ""),
        (
            ["--tokenizer-vocab-size", "256"],
            ExitCode.USAGE,
            "--tokenizer-vocab-size is 256; set at least 257",
        ),
        (["--workers", "0"], ExitCode.USAGE, "--workers is 0; set 1 or more"),
        (["--worker", "1"], ExitCode.USAGE, "unknown arguments: --worker 1"),
    ],
)
def test_the_command_exits_with_a_code_and_a_one_line_message(
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
    termination = json.loads(log.read_text())
    assert termination["exitCode"] == code
    assert termination["message"].startswith(message)
    assert "Traceback" not in capsys.readouterr().err


ENDLESS = """
import time
from megatron_trainer.data import prepare
prepare._run = lambda argv: (print("prepares", flush=True), time.sleep(600))
prepare.main([])
"""


def test_a_pod_that_is_deleted_ends_at_once() -> None:
    """The first process of a container ignores SIGTERM without a handler, and would write on for 30 s."""
    pod = subprocess.Popen([sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE, text=True)
    assert pod.stdout is not None
    assert pod.stdout.readline() == "prepares\n"
    pod.terminate()
    assert pod.wait() == ExitCode.TERMINATED


def test_without_a_matching_file_the_globs_are_named(source: Path) -> None:
    requested = parse_options(
        [
            *("--source", str(source), "--include", "*.rs", "--include", "*.go"),
            *("--output-prefix", "x", "--tokenizer-dir", "y"),
        ]
    )
    with pytest.raises(PreparationError, match=r"^data\.prepare\.include .* matches \*\.rs or \*\.go"):
        prepare.find_files(requested)


def test_words_after_two_dashes_are_flags_of_the_run_and_no_settings_of_the_corpus(source: Path) -> None:
    requested = options(source, "--", "--seq-length", "64", "--workers", "9")
    assert requested.megatron_flags == ("--seq-length", "64", "--workers", "9")
    assert requested.settings() == options(source).settings()
    assert options(source).megatron_flags == ()


def test_the_result_has_how_often_the_run_reads_a_folder(source: Path) -> None:
    out = source.parent / "data"
    words = ["--source", str(source), "--include", "**/*.py", "--output-prefix", str(out / "code")]
    words += ["--tokenizer-dir", str(out / "tokenizer"), "--tokenizer-vocab-size", "300"]
    flags = ["--seq-length", "8", "--global-batch-size", "4", "--split", "100,0,0", "--eval-iters", "0"]
    flags += ["--data-path", str(out / "code_text_document"), "--train-iters"]
    _, built = prepare._from_folder(words)
    assert built is not None
    iterations = 3 * built.tokens // (8 * 4)
    text, _ = prepare._from_folder([*words, "--", *flags, str(iterations)])
    times = check.show_times(iterations * 8 * 4 / built.tokens)
    assert f"; the run reads those for training {times}; " in text
    assert times != "once"


def test_a_corpus_is_ready_also_if_the_index_of_its_samples_cannot_be_built(source: Path) -> None:
    line = build_index(options(source, "--", "--seq-length", "64").megatron_flags)
    assert line == (
        "warning: no index of the samples, rank 0 will build it while the others wait: --data-cache-path is "
        "missing; set it as in the run's own flags"
    )
