"""A volume that cannot be read for a while ends a preparation with a code that a retry follows."""

import errno
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import megatron_trainer.bridge
import pytest
import transformers
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.data import check, image_samples, prepare, sources_command, tokenizer
from megatron_trainer.data.chat import ConversationError, load_template
from megatron_trainer.data.image_samples import SampleLines
from megatron_trainer.data.preparation_error import PreparationError

from tests.unit.trainer.data.corpus import with_template

# Reads of address 0 of a process's memory fail with EIO.
FAILING = Path("/proc/self/mem")


def wrapped(*_: object, **__: object) -> Any:
    """What a library raises for an error of the volume."""
    try:
        FAILING.read_bytes()
    except OSError as error:
        raise ValueError("not a valid folder") from error


def broken(*_: object, **__: object) -> Any:
    raise ValueError("not a valid folder")


LOADED: dict[str, tuple[Callable[[Path], Any], type[Exception]]] = {
    "a folder": (check.load_offline, PreparationError),
    "a name": (lambda _: check.load_cached("organisation/model"), PreparationError),
    "a template": (load_template, ConversationError),
}


@pytest.mark.parametrize(("load", "refused"), LOADED.values(), ids=LOADED)
def test_a_tokenizer_that_cannot_be_read_for_a_while_is_not_called_wrong(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    load: Callable[[Path], Any],
    refused: type[Exception],
) -> None:
    for kind in (transformers.AutoTokenizer, transformers.PreTrainedTokenizerFast):
        monkeypatch.setattr(kind, "from_pretrained", wrapped)
    with pytest.raises(ValueError, match="not a valid folder") as raised:
        load(tmp_path)
    assert isinstance(raised.value.__cause__, OSError)
    for kind in (transformers.AutoTokenizer, transformers.PreTrainedTokenizerFast):
        monkeypatch.setattr(kind, "from_pretrained", broken)
    with pytest.raises(refused, match="not a valid folder"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_each_file_of_a_tokenizer_may_be_unreadable_for_a_while(
    tmp_path: Path, tokenizer_dir: Path, name: str
) -> None:
    folder = with_template(tokenizer_dir, tmp_path / "tokenizer")
    (folder / name).unlink()
    (folder / name).symlink_to(FAILING)
    with pytest.raises(OSError, match="Input/output error") as raised:
        tokenizer.load(folder)
    assert raised.value.errno == errno.EIO


def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tar: Path) -> str:
    """Prepare a sample whose image is in this file, with the trainer's own function that reads it."""
    monkeypatch.setattr(image_samples, "_load_processor", lambda _: None)
    lines = SampleLines(tmp_path, 64, None)
    reader = SimpleNamespace(checksum=lambda part: len(Path(part["tar"]).read_bytes()))
    monkeypatch.setattr(megatron_trainer.bridge, "image_text", reader, raising=False)
    image = {"type": "image", "tar": str(tar), "offset": 0, "size": 8}
    return lines.line([{"role": "user", "content": [image]}, {"role": "assistant", "content": []}])


def test_an_image_that_cannot_be_read_for_a_while_is_not_a_wrong_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OSError, match="Input/output error") as raised:
        sample(tmp_path, monkeypatch, FAILING)
    assert raised.value.errno == errno.EIO
    with pytest.raises(ConversationError, match="No such file"):
        sample(tmp_path, monkeypatch, tmp_path / "gone.tar")


def test_what_a_library_raises_for_an_error_of_the_volume_is_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sources_command, "run", wrapped)
    assert prepare._run(["--sources", "[]"]) == (ExitCode.WORKER_DIED, "not a valid folder", None)
    monkeypatch.setattr(sources_command, "run", broken)
    with pytest.raises(ValueError, match="not a valid folder"):
        prepare._run(["--sources", "[]"])
