"""Which weights an export adds adapters to."""

from pathlib import Path

import pytest
import yaml
from megatron_trainer.bridge.weights_record import WeightsRecord, digest
from megatron_trainer.checkpoints import selection
from megatron_trainer.weights import adapters
from megatron_trainer.weights.audit import Audit
from megatron_trainer.weights.conversion_error import ConversionError
from megatron_trainer.weights.huggingface_folder import HuggingFaceFolder
from megatron_trainer.weights.tensors import Header

TRACKER = "latest_checkpointed_iteration.txt"


def base(*, has_weights: bool) -> HuggingFaceFolder:
    """What `--base` names."""
    header = Header(Path("base/model.safetensors") if has_weights else None, (4,), "F32")
    return HuggingFaceFolder(Path("base"), {}, {"model.norm.weight": header})


WITH_WEIGHTS, WITHOUT = base(has_weights=True), base(has_weights=False)


@pytest.fixture(autouse=True)
def _are_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "why_incomplete", lambda *_: None)


def weights(folder: Path, name: str) -> Path:
    """A checkpoint that the tracker of its folder names."""
    (folder / name).mkdir(parents=True)
    (folder / name / ".metadata").write_text(name)
    (folder / TRACKER).write_text(name.removeprefix("iter_").lstrip("0"))
    return folder / name


def of_adapters(run: Path, below: Path, recorded: Path | None = None) -> Path:
    """A checkpoint of adapters whose configuration names `below`."""
    directory = run / "iter_0000005"
    directory.mkdir(parents=True)
    settings = {"peft": {"_target_": "lora"}, "checkpoint": {"pretrained_checkpoint": str(below)}}
    (directory / "run_config.yaml").write_text(yaml.safe_dump(settings))
    if recorded is not None:
        WeightsRecord(below, recorded, digest(recorded), None, "start").write(run)
    return directory


@pytest.mark.parametrize("folder", [WITH_WEIGHTS, WITHOUT])
def test_adapters_are_added_to_the_weights_that_their_run_has_recorded(
    folder: HuggingFaceFolder, tmp_path: Path
) -> None:
    run = tmp_path / "base"
    trained_on = weights(run, "iter_0000010")
    directory = of_adapters(tmp_path / "lora", run, trained_on)
    weights(run, "iter_0000020")
    assert adapters.frozen_weights(directory, folder) == trained_on


@pytest.mark.parametrize(
    ("change", "state"), [("removed", "is not there"), ("saved again", "has other weights now")]
)
def test_recorded_weights_of_a_run_that_have_changed_are_refused(
    change: str, state: str, tmp_path: Path
) -> None:
    """Weights of the base would be others."""
    trained_on = weights(tmp_path / "base", "iter_0000010")
    directory = of_adapters(tmp_path / "lora", trained_on, trained_on)
    if change == "removed":
        trained_on.rename(tmp_path / "elsewhere")
    else:
        (trained_on / ".metadata").write_text("others")
    with pytest.raises(ConversionError, match=f"{trained_on}, which {state}; restore them"):
        adapters.frozen_weights(directory, WITH_WEIGHTS)


def test_adapters_are_added_to_the_weights_of_an_import_that_was_repeated(tmp_path: Path) -> None:
    release = weights(tmp_path / "imported", "release")
    Audit("import", "huggingFace", {}).write(release.parent)
    directory = of_adapters(tmp_path / "lora", release.parent, release.parent)
    (release / ".metadata").write_text("imported again")
    assert adapters.frozen_weights(directory, WITHOUT) == release


def test_the_base_stands_for_an_import_that_is_gone(tmp_path: Path) -> None:
    imported = weights(tmp_path / "imported", "release").parent
    directory = of_adapters(tmp_path / "lora", imported, imported)
    imported.rename(tmp_path / "elsewhere")
    assert adapters.frozen_weights(directory, WITH_WEIGHTS) is None
    with pytest.raises(ConversionError, match="--base FOLDER"):
        adapters.frozen_weights(directory, WITHOUT)


def test_without_a_record_the_configuration_names_an_import_or_an_iteration(tmp_path: Path) -> None:
    """As of release 0.2.0, or of a copy of one iteration."""
    release = weights(tmp_path / "imported", "release")
    iteration = weights(tmp_path / "base", "iter_0000010")
    for name, below, found in (("one", release.parent, release), ("two", iteration, iteration)):
        assert adapters.frozen_weights(of_adapters(tmp_path / name, below), WITH_WEIGHTS) == found


def test_without_a_record_the_base_is_taken_instead_of_a_run_that_may_have_trained_on(tmp_path: Path) -> None:
    run = weights(tmp_path / "base", "iter_0000010").parent
    directory = of_adapters(tmp_path / "lora", run)
    assert adapters.frozen_weights(directory, WITH_WEIGHTS) is None
    with pytest.raises(ConversionError, match="--base FOLDER"):
        adapters.frozen_weights(directory, WITHOUT)
