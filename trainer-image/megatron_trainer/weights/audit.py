"""Compares the tensors of a conversion's source with those of its result."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megatron_trainer.weights.tensors import Header, TensorRecord

AUDIT_FILE = "conversion-audit.json"
DEQUANTIZED = "dequantized"
"""The detail that names the tensors which the source has in fewer bits; compared are their values."""
_NAMED = 5


@dataclass(frozen=True)
class Tie:
    """Whether the output layer is the embedding: by the configuration, and in the result."""

    expected: bool
    found: bool


@dataclass(frozen=True)
class Audit:
    """What was compared: every tensor of the source, and the problems that were found."""

    conversion: str
    """import, export or merge."""
    layout: str
    """In which names and shapes the two were compared: huggingFace or megatron."""
    tensors: Mapping[str, TensorRecord]
    problems: list[str] = field(default_factory=list)
    tie: Tie | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether the result is the source."""
        return not self.problems

    @property
    def bytes(self) -> int:
        """Size of the tensors that were compared."""
        return sum(record.bytes for record in self.tensors.values())

    def summary(self) -> str:
        """One line for people."""
        compared = f"{len(self.tensors)} tensors, {self.bytes:,} bytes"
        if dequantized := self.details.get(DEQUANTIZED):
            compared += f", {len(dequantized)} of them dequantized"
        if self.passed:
            return f"audit passed: {compared}, names, shapes, dtypes and checksums equal"
        named = "; ".join(self.problems[:_NAMED])
        more = f"; and {len(self.problems) - _NAMED} more" if len(self.problems) > _NAMED else ""
        return f"audit failed: {len(self.problems)} problems in {compared}: {named}{more}"

    def to_json(self) -> dict[str, Any]:
        """The object that is written beside the weights."""
        return {
            "version": 1,
            "conversion": self.conversion,
            "layout": self.layout,
            "passed": self.passed,
            "problems": self.problems,
            "tied": None if self.tie is None else {"expected": self.tie.expected, "found": self.tie.found},
            **self.details,
            "tensors": {name: record.to_json() for name, record in sorted(self.tensors.items())},
        }

    def write(self, folder: Path) -> None:
        """Write the audit into the folder of the result."""
        text = json.dumps(self.to_json(), indent=1)
        (folder / AUDIT_FILE).write_text(text + "\n", encoding="utf-8")


def imported_headers(checkpoint: Path) -> dict[str, Header]:
    """Return the tensors that an import read, from the audit beside a checkpoint; empty without one."""
    try:
        audit = json.loads((checkpoint / AUDIT_FILE).read_text(encoding="utf-8"))
        if audit["conversion"] != "import":
            return {}
        return {
            name: Header(None, tuple(tensor["shape"]), tensor["dtype"])
            for name, tensor in audit["tensors"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def compare(source: Mapping[str, TensorRecord], result: Mapping[str, TensorRecord]) -> list[str]:
    """Return one line per tensor that is missing, unexpected or different."""
    problems = [f"{name} is missing" for name in sorted(source.keys() - result.keys())]
    problems += [f"{name} is unexpected" for name in sorted(result.keys() - source.keys())]
    for name in sorted(source.keys() & result.keys()):
        before, after = source[name], result[name]
        if before.shape != after.shape:
            problems.append(f"{name} has shape {list(after.shape)} instead of {list(before.shape)}")
        elif before.dtype != after.dtype:
            problems.append(f"{name} has dtype {after.dtype} instead of {before.dtype}")
        elif before.sha256 != after.sha256:
            problems.append(f"{name} has other values")
    return problems


def check_tie(tie: Tie) -> list[str]:
    """Return the problem of an output layer that is wrongly tied to the embedding, or wrongly not."""
    if tie.expected == tie.found:
        return []
    expected, found = ("tied", "separate") if tie.expected else ("separate", "tied")
    return [f"the output layer is {found}, but {expected} by tie_word_embeddings of config.json"]
