"""Which weights a run starts from: those of a checkpoint, or of adapters with the weights they belong to.

A checkpoint of LoRA or DoRA holds adapters alone; its configuration names the weights. Those below the
adapters of a run must stay the same in all its starts, which is what a run's record is for.
"""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from megatron_contract.exit_codes import ExitCode

from megatron_trainer.bridge.weights_record import WeightsRecord, digest
from megatron_trainer.checkpoints import selection
from megatron_trainer.worker.failures import RankError

FIELD: Final = "checkpoint.pretrained_checkpoint"
_CONFIG: Final = "run_config.yaml"
_SIGNS: Final = (
    _CONFIG,
    "metadata.json",
    ".metadata",
    "latest_train_state.pt",
    selection.TRACKER,
    "config.json",
)
"""A folder with one of these is a checkpoint for Bridge 0.6.2, or a model of Hugging Face."""
_OF_ADAPTERS: Final = ("_target_", "dim", "alpha", "target_modules")
"""Settings of adapters that their values depend on."""


@dataclass(frozen=True, slots=True)
class StartingWeights:
    """What a run reads before its first iteration."""

    asked: Path
    """The folder that the run's arguments name."""
    base: Path
    """The checkpoint with all weights of the model, one iteration of a run's."""
    adapters: Path | None = None
    """The checkpoint of adapters of these weights."""

    def record(self, start: str) -> WeightsRecord:
        """What the start of this name has taken."""
        return WeightsRecord(self.asked, self.base, digest(self.base), self.adapters, start)


def find(asked: Path) -> StartingWeights:
    """The weights that are now the newest in the folder which a run is given.

    Raises OSError, RankError with NO_CHECKPOINT for a folder without any, with BAD_DATA where the weights
    below adapters are not those that they were trained on.
    """
    newest = _newest(asked)
    if not any((folder / name).exists() for folder in {asked, newest} for name in _SIGNS):
        raise RankError(
            ExitCode.NO_CHECKPOINT,
            f"{FIELD}: {asked} has no checkpoint, and the run starts from its weights; correct the folder, "
            "or import the weights again",
        )
    config = configuration(newest)
    if config is None or config.get("peft") is None:
        return StartingWeights(asked, newest)
    base = (config.get("checkpoint") or {}).get("pretrained_checkpoint")
    if not base or not Path(base).is_dir():
        raise RankError(
            ExitCode.BAD_DATA,
            f"{FIELD}: {newest} holds adapters of {base or 'unknown weights'}, which is no folder here; have "
            "the pods mount its volume at the same place",
        )
    recorded = WeightsRecord.read(newest.parent)
    if recorded is None:
        return StartingWeights(asked, _newest(Path(base)), newest)
    require(recorded, newest.parent)
    return StartingWeights(asked, recorded.weights, newest)


def require(recorded: WeightsRecord, of: Path) -> None:
    """Raise RankError with BAD_DATA unless the weights below the adapters in `of` are as recorded."""
    if state := recorded.why_unusable():
        raise RankError(
            ExitCode.BAD_DATA,
            f"{FIELD}: the adapters in {of} belong to the weights in {recorded.weights}, which {state}; "
            "restore them, or start a new recipe",
        )


def configuration(checkpoint: Path) -> dict[str, Any] | None:
    """The configuration in a checkpoint of Megatron-Bridge, or in an import; None for none that is valid.

    Raises OSError where it cannot be read: without it adapters would count as weights.
    """
    import yaml

    for folder in (checkpoint, checkpoint / selection.RELEASE):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, ValueError, yaml.YAMLError):
            found = yaml.safe_load((folder / _CONFIG).read_text(encoding="utf-8"))
            if isinstance(found, dict):
                return found
    return None


def require_same_adapters(peft: Any, checkpoint: Path, model: Any) -> None:
    """Raise RankError with BAD_DATA unless a run trains adapters as those in a checkpoint.

    Bridge 0.6.2 would give magnitudes of DoRA in a gated `linear_fc1` to other rows at another TP.
    """
    theirs = (configuration(checkpoint) or {}).get("peft") or {}
    own = {name: getattr(peft, name, None) for name in _OF_ADAPTERS}
    own["_target_"] = f"{type(peft).__module__}.{type(peft).__qualname__}"
    for name in _OF_ADAPTERS:
        if theirs.get(name) != own[name]:
            what = name if name != "_target_" else "type"
            raise RankError(
                ExitCode.BAD_DATA,
                f"{FIELD}: the adapters in {checkpoint} have {what} {theirs.get(name)!r}, and this run has "
                f"{own[name]!r}; set peft to theirs, or export them and start from the result",
            )
    tp = ((configuration(checkpoint) or {}).get("model") or {}).get("tensor_model_parallel_size")
    magnitudes = type(peft).__name__ == "DoRA" and "linear_fc1" in peft.target_modules
    if magnitudes and tp != model.tensor_model_parallel_size:
        raise RankError(
            ExitCode.BAD_DATA,
            f"{FIELD}: Megatron-Bridge does not load DoRA of linear_fc1 in {checkpoint} at another TP than "
            f"{tp}; set parallelism.tensorModelParallelSize: {tp}",
        )


def _newest(folder: Path) -> Path:
    """The iteration that the tracker of a run names, else the folder itself, as of an import."""
    try:
        text = selection.read_tracker(folder)
    except NotADirectoryError:
        return folder
    return selection.directory(folder, int(text)) if text is not None and text.isdecimal() else folder
