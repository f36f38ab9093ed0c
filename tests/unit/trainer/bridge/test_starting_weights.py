"""Which checkpoint a run of Megatron-Bridge starts from, and what adapters require of it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.bridge import starting_weights, vocabulary
from megatron_trainer.worker.failures import RankError

SETTINGS = {"_target_": "types.SimpleNamespace", "dim": 8, "alpha": 16, "target_modules": ["linear_qkv"]}


def checkpoint(run: Path, iteration: int, base: Path | None = None, content: str = "weights") -> Path:
    """A checkpoint that the tracker of a run names; of adapters if `base` is given."""
    folder = run / f"iter_{iteration:07}"
    folder.mkdir(parents=True)
    (folder / ".metadata").write_text(content)
    settings: dict[str, Any] = {"peft": None, "checkpoint": {}, "model": {"tensor_model_parallel_size": 2}}
    if base is not None:
        settings |= {"peft": SETTINGS, "checkpoint": {"pretrained_checkpoint": str(base)}}
    (folder / "run_config.yaml").write_text(yaml.safe_dump(settings))
    (run / "latest_checkpointed_iteration.txt").write_text(str(iteration))
    return folder


def imported(folder: Path) -> Path:
    (folder / "release").mkdir(parents=True)
    (folder / "release" / ".metadata").write_text("imported")
    (folder / "latest_checkpointed_iteration.txt").write_text("release")
    return folder


def refused(asked: Path) -> str:
    with pytest.raises(RankError) as error:
        starting_weights.find(asked)
    assert error.value.code == ExitCode.BAD_DATA
    return str(error.value)


def test_weights_are_those_of_the_iteration_that_the_tracker_names(tmp_path: Path) -> None:
    newest = checkpoint(tmp_path / "run", 20)
    found = starting_weights.find(tmp_path / "run")
    assert (found.base, found.adapters) == (newest, None)
    assert starting_weights.find(newest).base == newest


@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_without_a_checkpoint_is_named(exists: bool, tmp_path: Path) -> None:
    folder = tmp_path / "model-megatron"
    if exists:
        folder.mkdir()
    with pytest.raises(RankError, match=f"{folder} has no checkpoint") as error:
        starting_weights.find(folder)
    assert error.value.code == ExitCode.NO_CHECKPOINT


def test_an_import_is_read_as_it_is(tmp_path: Path) -> None:
    folder = imported(tmp_path / "model-megatron")
    assert starting_weights.find(folder).base == folder


def test_adapters_are_read_with_the_weights_that_they_belong_to(tmp_path: Path) -> None:
    base = imported(tmp_path / "model-megatron")
    adapters = checkpoint(tmp_path / "lora", 10, base)
    found = starting_weights.find(tmp_path / "lora")
    assert (found.base, found.adapters) == (base, adapters)


def test_adapters_whose_weights_are_not_mounted_are_refused(tmp_path: Path) -> None:
    checkpoint(tmp_path / "lora", 10, tmp_path / "absent")
    assert f"holds adapters of {tmp_path}/absent, which is no folder here" in refused(tmp_path / "lora")


def test_adapters_are_read_with_the_weights_that_their_run_has_recorded(tmp_path: Path) -> None:
    first = checkpoint(tmp_path / "base", 10)
    starting_weights.find(tmp_path / "base").record("start").write(tmp_path / "lora")
    adapters = checkpoint(tmp_path / "lora", 5, tmp_path / "base")
    checkpoint(tmp_path / "base", 20)
    for asked in (tmp_path / "lora", adapters):
        found = starting_weights.find(asked)
        assert (found.base, found.adapters) == (first, adapters)


@pytest.mark.parametrize(
    ("change", "state"), [("removed", "is not there"), ("saved again", "has other weights")]
)
def test_adapters_of_weights_that_have_changed_are_refused(change: str, state: str, tmp_path: Path) -> None:
    first = checkpoint(tmp_path / "base", 10)
    lora = tmp_path / "lora"
    starting_weights.find(tmp_path / "base").record("start").write(lora)
    checkpoint(lora, 5, tmp_path / "base")
    if change == "removed":
        first.rename(tmp_path / "elsewhere")
    else:
        (first / ".metadata").write_text("others")
    assert f"the adapters in {lora} belong to the weights in {first}, which {state}" in refused(lora)


@pytest.mark.parametrize("name", ["dim", "alpha", "target_modules"])
def test_adapters_of_other_settings_are_refused(name: str, tmp_path: Path) -> None:
    adapters = checkpoint(tmp_path / "lora", 10, tmp_path)
    model = SimpleNamespace(tensor_model_parallel_size=1)
    own = {key: value for key, value in SETTINGS.items() if key != "_target_"}
    starting_weights.require_same_adapters(SimpleNamespace(**own), adapters, model)
    with pytest.raises(RankError, match=f"have {name} ") as error:
        starting_weights.require_same_adapters(SimpleNamespace(**own | {name: "another"}), adapters, model)
    assert "set peft to theirs, or export them" in str(error.value)


@pytest.mark.parametrize(
    ("model", "pretrains", "expected"),
    [
        ({"vocab_size": 1000, "should_pad_vocab": True}, True, (None, True)),
        ({"vocab_size": 1000, "should_pad_vocab": False}, True, (1000, False)),
        ({"vocab_size": 1000, "should_pad_vocab": False}, False, (None, False)),
    ],
)
def test_a_run_has_the_vocabulary_of_its_weights(
    model: dict[str, Any], pretrains: bool, expected: tuple[int | None, bool], tmp_path: Path
) -> None:
    """That of the tokenizer where a run made them with one, in fine-tuning that of the function."""
    release = imported(tmp_path / "model-megatron") / "release"
    (release / "run_config.yaml").write_text(yaml.safe_dump({"model": model}))
    config = SimpleNamespace(
        model=SimpleNamespace(vocab_size=None), tokenizer=SimpleNamespace(use_tokenizer_vocab_size=True)
    )
    vocabulary.keep(config, release.parent, pretrains=pretrains)
    assert (config.model.vocab_size, config.tokenizer.use_tokenizer_vocab_size) == expected
