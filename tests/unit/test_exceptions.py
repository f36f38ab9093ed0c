"""Exceptions of the operator: their names, and one base class."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "operator" / "megatron_operator"


def exception_classes() -> dict[str, list[str]]:
    """Names of the bases of each class that is an exception by its name or by its bases."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                bases = [ast.unparse(base) for base in node.bases]
                if any(name.endswith(("Error", "Exception")) for name in [node.name, *bases]):
                    found[node.name] = bases
    # Results, not exceptions.
    del found["FieldError"], found["UnsuitableBatch"]
    return found


def test_every_exception_ends_in_error_and_derives_from_the_base_of_the_package() -> None:
    classes = exception_classes()
    assert classes.pop("OperatorError") == ["Exception"]
    # Raised by a signal handler, through every `except Exception`.
    assert classes.pop("_TimeLimitError") == ["BaseException"]
    assert [name for name in classes if not name.endswith("Error")] == []
    derived = {"OperatorError"}
    while more := {name for name, bases in classes.items() if derived & {*bases}} - derived:
        derived |= more
    assert classes.keys() - derived == set()
