"""The file beside a run's checkpoints that names the weights which the run started from."""

import contextlib
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from megatron_trainer.checkpoints.selection import RELEASE

FILE: Final = "weights.json"
_INDEX: Final = ".metadata"
_AUDIT: Final = "conversion-audit.json"
"""In an import, with the checksums of the tensors that it read."""


@dataclass(frozen=True, slots=True)
class WeightsRecord:
    """What a start of a run took, for its other ranks, its later starts and exports."""

    asked: Path
    """The folder that the run's arguments name."""
    weights: Path
    """The checkpoint with all weights of the model."""
    sha256: str | None
    """`digest` of that checkpoint."""
    adapters: Path | None
    """The checkpoint of adapters that the run began with."""
    start: str
    """The start that wrote this; no other one has this name."""

    def write(self, save: Path) -> None:
        """Replace the record of the run that saves to `save`. Raises OSError."""
        save.mkdir(parents=True, exist_ok=True)
        content = {
            "from": str(self.asked),
            "weights": str(self.weights),
            "sha256": self.sha256,
            "adapters": None if self.adapters is None else str(self.adapters),
            "start": self.start,
        }
        partial = save / f".{FILE}.partial"
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        partial.replace(save / FILE)

    @classmethod
    def read(cls, save: Path) -> Self | None:
        """The record of the run that saves to `save`; None where there is none.

        Raises OSError where it cannot be read: another one in its place would name other weights.
        """
        try:
            text = (save / FILE).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        with contextlib.suppress(ValueError, KeyError, TypeError):
            found = json.loads(text)
            adapters = found["adapters"]
            return cls(
                Path(found["from"]),
                Path(found["weights"]),
                found["sha256"],
                None if adapters is None else Path(adapters),
                found["start"],
            )
        return None

    def why_unusable(self) -> str | None:
        """What has become of the weights since, in words after `which`; None if they are the same.

        Raises OSError where they cannot be read.
        """
        if not self.weights.is_dir():
            return "is not there"
        # Earlier records have that of the index for an import too.
        same = self.sha256 in (digest(self.weights), _index_digest(self.weights))
        return None if same else "has other weights now"


def digest(checkpoint: Path) -> str | None:
    """SHA-256 of an import's audited tensors, else of the checkpoint's index, which differs with each save.

    None where there is neither. Raises OSError where one cannot be read.
    """
    return _imported_digest(checkpoint) or _index_digest(checkpoint)


def _imported_digest(checkpoint: Path) -> str | None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        audit = json.loads((checkpoint / _AUDIT).read_bytes())
        if audit["conversion"] == "import":
            tensors = json.dumps(audit["tensors"], sort_keys=True)
            return hashlib.sha256(tensors.encode()).hexdigest()
    return None


def _index_digest(checkpoint: Path) -> str | None:
    for file in (checkpoint / _INDEX, checkpoint / RELEASE / _INDEX):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return hashlib.sha256(file.read_bytes()).hexdigest()
    return None
