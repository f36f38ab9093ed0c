"""Files that a user removes once they are prepared: a run goes on with what was made of them."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from megatron_trainer.data import chats
from megatron_trainer.data.blend import Worker
from megatron_trainer.data.chat_check import ChatRun
from megatron_trainer.data.preparation_error import PreparationError

from tests.unit.trainer.data.corpus import prepare, source, write

RUN = ChatRun(64, 4, 8, 99, "100,0", evaluates=False)


@pytest.mark.parametrize("kind", ["jsonl", "hf"])
def test_a_dataset_whose_files_were_removed_is_used(
    kind: str, tmp_path: Path, tokenizer_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = source(tmp_path, write(tmp_path / "raw", kind))
    before = prepare(tmp_path, tokenizer_dir, found)
    shutil.rmtree(tmp_path / "raw")
    assert prepare(tmp_path, tokenizer_dir, found) == before
    assert f"nothing matches {found.path} any more; {tmp_path}/out/objects/" in "".join(capfd.readouterr())


@pytest.mark.parametrize("change", [{"path": "/none/*.jsonl"}, {"key": "body"}, {"documents": 3}], ids=str)
def test_a_dataset_of_other_settings_is_not_used(
    change: dict[str, Any], tmp_path: Path, tokenizer_dir: Path
) -> None:
    settings = write(tmp_path / "raw", "jsonl")
    prepare(tmp_path, tokenizer_dir, source(tmp_path, settings))
    shutil.rmtree(tmp_path / "raw")
    with pytest.raises(PreparationError, match="no file matches") as refused:
        prepare(tmp_path, tokenizer_dir, source(tmp_path, settings | change))
    assert f"list path: {tmp_path}/out/corpus_text_document in data.blend" in str(refused.value)


def test_a_dataset_that_is_not_whole_is_not_used(tmp_path: Path, tokenizer_dir: Path) -> None:
    found = source(tmp_path, write(tmp_path / "raw", "jsonl"))
    prepare(tmp_path, tokenizer_dir, found)
    shutil.rmtree(tmp_path / "raw")
    Path(f"{found.output}.bin").resolve().write_bytes(b"")
    with pytest.raises(PreparationError, match="no file matches"):
        prepare(tmp_path, tokenizer_dir, found)


def test_the_refusal_of_changed_files_names_how_to_go_on(tmp_path: Path, tokenizer_dir: Path) -> None:
    found = source(tmp_path, write(tmp_path / "raw", "jsonl"))
    prepare(tmp_path, tokenizer_dir, found)
    (tmp_path / "raw" / "c.jsonl").write_text('{"text": "more"}\n')
    with pytest.raises(PreparationError, match=r"another data\.prepare\.name") as refused:
        prepare(tmp_path, tokenizer_dir, found)
    assert f"list path: {found.output} in data.blend, instead of data.sources" in str(refused.value)


@pytest.mark.parametrize("count", [1, 2])
def test_samples_to_fine_tune_on_whose_files_were_removed_are_used(
    count: int, tmp_path: Path, tokenizer_dir: Path
) -> None:
    kinds = ("jsonl", "text")[:count]
    found = [
        replace(source(tmp_path, write(tmp_path / kind, kind)), name=f"data.sources[{index}]")
        for index, kind in enumerate(kinds)
    ]
    root = tmp_path / "out" / "samples"

    def samples(run: ChatRun = RUN) -> list[str]:
        chats.prepare_chats(found, root.parent, root, tokenizer_dir, Worker(0, 1), run)
        return [json.loads(line) for line in (root / "training.jsonl").open()]

    before = samples()
    shutil.rmtree(tmp_path / kinds[-1])
    assert samples() == before
    with pytest.raises(PreparationError, match="no file matches"):
        samples(replace(RUN, seq_length=32))
