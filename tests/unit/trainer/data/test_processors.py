"""What is wrong with a model's folder is reported of the folder, before a sample is read."""

import errno
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import megatron_trainer.bridge
import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.data import chats
from megatron_trainer.data.blend import Worker
from megatron_trainer.data.chat_check import ChatRun
from megatron_trainer.data.preparation_error import PreparationError
from megatron_trainer.data.sources import Source
from megatron_trainer.weights import cpu_model

from tests.unit.trainer.data.corpus import with_template

Load = Callable[[str], Any]


@pytest.fixture
def prepare(tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Load], str]:
    """Prepares samples that are not there, with what loads a processor; returns the error."""
    folder = with_template(tokenizer_dir, tmp_path / "model")
    (folder / "preprocessor_config.json").write_text("{}")
    samples = Source("data.sources[0]", f"{tmp_path}/*.tar", "webdataset", tmp_path / "out")
    run = ChatRun(64, 4, 8, 1, "100,0", evaluates=False)

    def refused(load: Load) -> str:
        for name, module in {
            "image_text": {"load_processor": load},
            "image_batches": {"collator": known},
        }.items():
            monkeypatch.setattr(megatron_trainer.bridge, name, SimpleNamespace(**module), raising=False)
        monkeypatch.setattr(cpu_model, "import_bridge", lambda: None)
        with pytest.raises(PreparationError) as raised:
            chats.prepare_chats([samples], tmp_path, tmp_path / "out", folder, Worker(0, 1), run)
        assert raised.value.code == ExitCode.BAD_DATA
        return str(raised.value).replace(str(tmp_path), "")

    return refused


def known(processor: str) -> None:
    if processor != SimpleNamespace.__name__:
        raise ValueError(f"no batches are made for {processor}")


def broken(_: str) -> Any:
    raise ValueError("Unrecognized processing class")


PROCESSORS: dict[str, tuple[Load, str]] = {
    "damaged": (
        broken,
        "the processor of /model cannot be used: Unrecognized processing class; copy",
    ),
    "unknown": (
        lambda _: {},
        "the processor of /model cannot be used: no batches are made for dict; copy",
    ),
    "without template": (lambda _: SimpleNamespace(), "/model has no chat template; add chat_template.jinja"),
}


@pytest.mark.parametrize(("load", "problem"), PROCESSORS.values(), ids=PROCESSORS)
def test_a_processor_that_cannot_be_used_is_an_error_of_the_models_folder(
    prepare: Callable[[Load], str], load: Load, problem: str
) -> None:
    assert prepare(load).startswith(f"init.modelFolder: {problem}")


def test_a_folder_without_a_processor_is_named(prepare: Callable[[Load], str], tmp_path: Path) -> None:
    (tmp_path / "model" / "preprocessor_config.json").unlink()
    text = prepare(broken)
    assert text.startswith("init.modelFolder: /model has no preprocessor_config.json; copy it from the model")


@pytest.mark.parametrize("owner", [{"chat_template": "x"}, {"tokenizer": SimpleNamespace(chat_template="x")}])
def test_the_template_of_a_processor_or_its_tokenizer_suffices(
    prepare: Callable[[Load], str], owner: dict[str, Any]
) -> None:
    text = prepare(lambda _: SimpleNamespace(**owner))
    assert text.startswith("data.sources[0].path: no file matches /*.tar")


def test_a_folder_that_cannot_be_read_for_a_while_is_not_called_wrong(prepare: Callable[[Load], str]) -> None:
    def unreadable(_: str) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output error"):
        prepare(unreadable)
