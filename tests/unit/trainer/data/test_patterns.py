"""Files that a pattern matches and that cannot be read are named, and not left out."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.data import patterns, prepare, sources
from megatron_trainer.data.patterns import left_out
from megatron_trainer.data.preparation_error import PreparationError
from megatron_trainer.data.prepare_options import parse_options

from tests.unit.trainer.data.corpus import source

NOBODY = 65534


@pytest.fixture
def corpus() -> Iterator[Path]:
    """A folder with an open, a closed and a hidden folder; the test runs as a user that may not enter two.

    Of the open one this user may not read one file, nor write there.
    """
    own = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for each in ("open", "closed", ".hidden"):
            (folder / each).mkdir()
            (folder / each / "a.jsonl").write_text('{"text": "a document"}\n')
        (folder / "open" / "closed.txt").touch(0)
        (folder / "open").chmod(0o555)
        closed = (folder / "closed", folder / ".hidden")
        for each in closed:
            each.chmod(0)
        if own == 0:
            os.seteuid(NOBODY)
        try:
            yield folder
        finally:
            os.seteuid(own)
            for each in (*closed, folder / "open"):
                each.chmod(0o755)


@pytest.mark.parametrize("pattern", ["*/*.jsonl", "**/*.jsonl", "clo*/*", "closed/*.jsonl"])
def test_a_folder_that_may_not_be_listed_is_named(corpus: Path, pattern: str) -> None:
    fix = "let this user read and enter it"
    assert left_out(corpus, pattern) == f"{corpus}/closed may not be listed by user {os.geteuid()}; {fix}"


def test_a_file_in_a_folder_that_may_not_be_entered_is_named(corpus: Path) -> None:
    message = left_out(corpus, "*/a.jsonl")
    assert message is not None
    assert message.startswith(f"{corpus}/closed/a.jsonl may not be read by user {os.geteuid()}; let")


@pytest.mark.parametrize("pattern", ["*", "open/*", "open/**/*.jsonl", "o*/*.jsonl", "gone/*"])
def test_what_a_pattern_does_not_match_may_be_closed(corpus: Path, pattern: str) -> None:
    assert left_out(corpus, pattern) is None


def test_a_link_to_nothing_is_named_where_the_pattern_matches_it(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "gone")
    lost = f"{tmp_path}/a.jsonl is a link to {tmp_path}/gone, which does not exist"
    assert left_out(tmp_path, "*.jsonl") == f"{lost}; copy the file there, or remove the link"
    assert left_out(tmp_path, "*.txt") is None


def test_links_to_folders_are_not_followed_by_two_stars(tmp_path: Path) -> None:
    """As by `Path.glob`: a link to a folder above it would never end."""
    (tmp_path / "loop").symlink_to(tmp_path)
    assert left_out(tmp_path, "**/*.jsonl") is None


def test_both_preparations_refuse_a_source_of_which_files_cannot_be_read(corpus: Path) -> None:
    found = source(corpus, {"path": f"{corpus}/*/*.jsonl", "format": "jsonl"})
    with pytest.raises(PreparationError, match=r"^data\.sources\[0\]\.path: .*/closed may not be") as sourced:
        sources.find_files(found)
    words = f"--source {corpus} --include */*.jsonl --output-prefix x --tokenizer-dir y".split()
    with pytest.raises(PreparationError, match="/closed may not be listed") as folder:
        prepare.find_files(parse_options(words))
    assert sourced.value.code == folder.value.code == ExitCode.BAD_DATA


@pytest.mark.parametrize(
    ("include", "problem"),
    [
        ("*", "cannot read {}/open/closed.txt: make it readable for user"),
        ("*.jsonl", "cannot write {}/open/out: make it writable for user"),
    ],
)
def test_what_may_not_be_read_is_not_named_as_what_may_not_be_written(
    corpus: Path, include: str, problem: str
) -> None:
    words = ["--source", f"{corpus}/open", "--include", include, "--output-prefix", f"{corpus}/open/out/code"]
    code, text, _ = prepare._run([*words, "--tokenizer-dir", f"{corpus}/tokenizer"])
    assert (code, text) == (ExitCode.BAD_DATA, f"{problem.format(corpus)} {os.geteuid()}")


@pytest.fixture
def data_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data volume with a file of a user, and with what another recipe has prepared."""
    monkeypatch.setattr(patterns, "PREPARED", tmp_path / "prepared")
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.jsonl").write_text('{"text": "a document"}\n')
    made = tmp_path / "prepared" / "objects" / "0f"
    made.mkdir(parents=True)
    (made / "training.jsonl").write_text('{"messages": []}\n')
    (tmp_path / "prepared" / "removed.jsonl").symlink_to(made / "gone")
    return tmp_path


@pytest.mark.parametrize("pattern", ["**/*.jsonl", "*/*.jsonl", "*/**/*.jsonl"])
def test_what_was_prepared_is_not_what_a_pattern_of_the_volume_means(data_volume: Path, pattern: str) -> None:
    found = source(data_volume, {"path": f"{data_volume}/{pattern}", "format": "jsonl"})
    words = f"--source {data_volume} --include {pattern} --output-prefix x --tokenizer-dir y".split()
    for files in (sources.find_files(found), prepare.find_files(parse_options(words))):
        assert files == [data_volume / "raw" / "a.jsonl"]


def test_a_pattern_that_names_the_folder_of_what_was_prepared_matches_its_files(data_volume: Path) -> None:
    pattern = f"{data_volume}/prepared/objects/*/*.jsonl"
    [file] = sources.find_files(source(data_volume, {"path": pattern, "format": "jsonl"}))
    assert file == data_volume / "prepared" / "objects" / "0f" / "training.jsonl"
    words = ["--include", "objects/**/*.jsonl", "--output-prefix", "x", "--tokenizer-dir", "y"]
    assert prepare.find_files(parse_options(["--source", f"{data_volume}/prepared", *words])) == [file]
