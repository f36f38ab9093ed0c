"""Exceptions of the trainer: their names and their base class."""

import ast
from pathlib import Path

import megatron_trainer

(PACKAGE,) = map(Path, megatron_trainer.__path__)


def exception_classes() -> dict[str, list[str]]:
    """Return the names of the bases of each class that is an exception by its name or by its bases."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                bases = [ast.unparse(base) for base in node.bases]
                if any(name.endswith(("Error", "Exception")) for name in [node.name, *bases]):
                    found[node.name] = bases
    return found


def test_every_exception_ends_in_error_and_has_the_base_of_the_package() -> None:
    classes = exception_classes()
    assert classes.pop("TrainerError") == ["Exception"]
    # Raised by a signal handler, through every `except Exception`.
    assert classes.pop("_EarlyTerminationError") == ["BaseException"]
    assert len(classes) > 10
    known = {"TrainerError", *classes}
    assert {name: bases for name, bases in classes.items() if len(bases) != 1 or bases[0] not in known} == {}
    assert [name for name in classes if not name.endswith("Error")] == []
