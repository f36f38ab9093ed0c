"""Several pods, also of several recipes, that prepare into one folder at the same time."""

import errno
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.data import prepare, tokenizer
from megatron_trainer.data.preparation_error import PreparationError
from megatron_trainer.data.prepare_options import PrepareOptions

from tests.unit.trainer.data.source_files import options, write_source


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_source(tmp_path)


@pytest.fixture
def faster(source: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[PrepareOptions], None]:
    """Has another pod prepare something else while the first documents are read."""
    prepare.build(replace(options(source), output_prefix=source.parent / "data" / "first"))
    read = prepare.read_documents

    def prepare_meanwhile(theirs: PrepareOptions) -> None:
        def documents(files: Sequence[Path], binary: list[Path] | None = None) -> Iterator[str]:
            monkeypatch.setattr(prepare, "read_documents", read)
            with monkeypatch.context() as other:
                other.setattr(socket, "gethostname", lambda: "other-pod")
                prepare.build(theirs)
            yield from read(files, binary)

        monkeypatch.setattr(prepare, "read_documents", documents)

    return prepare_meanwhile


def test_a_result_of_other_settings_that_another_pod_has_made_meanwhile_is_kept(
    source: Path, faster: Callable[[PrepareOptions], None]
) -> None:
    theirs = replace(options(source), append_eod=False)
    faster(theirs)
    with pytest.raises(PreparationError, match="was built with") as refused:
        prepare.build(options(source))
    assert refused.value.code == ExitCode.USAGE
    assert prepare.find_result(theirs) is not None


def test_a_result_that_another_pod_has_made_meanwhile_is_returned(
    source: Path, faster: Callable[[PrepareOptions], None]
) -> None:
    requested = options(source)
    faster(requested)
    built = prepare.build(requested)
    assert prepare.find_result(requested) == built
    assert not list(requested.data.parent.glob(".*"))


@pytest.mark.parametrize("hard_links", [True, False])
def test_two_recipes_that_train_a_tokenizer_at_once_both_encode_with_the_one_that_stays(
    source: Path, monkeypatch: pytest.MonkeyPatch, hard_links: bool
) -> None:
    if not hard_links:

        def refuse(*_: object) -> None:
            raise PermissionError(errno.EPERM, "the volume has no hard links")

        monkeypatch.setattr(os, "link", refuse)
    ours = options(source)
    theirs = replace(ours, output_prefix=source.parent / "data" / "theirs", tokenizer_vocab_size=280)
    read = prepare.read_documents

    def documents(files: Sequence[Path], binary: list[Path] | None = None) -> Iterator[str]:
        monkeypatch.setattr(prepare, "read_documents", read)
        prepare.build(theirs)
        yield from read(files, binary)

    monkeypatch.setattr(prepare, "read_documents", documents)
    sizes = {prepare.build(ours).vocab_size, prepare.find_result(theirs).vocab_size}  # type: ignore[union-attr]
    loaded, _ = tokenizer.load(ours.tokenizer_dir)
    assert sizes == {loaded.get_vocab_size()} == {280}
    assert not list(ours.tokenizer_dir.glob(".*"))
