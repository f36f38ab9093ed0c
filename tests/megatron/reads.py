"""Which of Megatron's arguments its training loop and the trainer read, from their source."""

import argparse
import ast
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import megatron.training
from megatron.training.arguments import add_megatron_arguments

PACKAGE = Path(megatron.training.__file__).parents[1]
TRAINER = Path(__file__).parents[2] / "trainer-image" / "megatron_trainer"
ROOTS = (PACKAGE / "core", PACKAGE / "training", TRAINER)
CONVERTER = TRAINER / "weights"
"""Compares settings of models, and trains nothing."""
ARGUMENTS = PACKAGE / "training" / "arguments.py"

PROGRAMS = {"rl": "rl", "sft": "sft"}
"""Group of arguments -> kind of those that take effect only in a program that the trainer has not."""


def parser() -> argparse.ArgumentParser:
    return add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))


@cache
def unread() -> dict[str, str]:
    """Flag without dashes -> `loop` where nothing reads it, or the kind of its program."""
    names, prefixes = _reads()
    found = {}
    for group in parser()._action_groups:
        for action in group._group_actions:
            read = action.dest in names or action.dest.startswith(tuple(prefixes))
            kind = PROGRAMS.get(str(group.title)) or (None if read else "loop")
            if kind is not None:
                flags = (flag for flag in action.option_strings if flag.startswith("--"))
                found |= {flag.removeprefix("--"): kind for flag in flags}
    found.pop("help", None)
    return found


def _reads() -> tuple[set[str], set[str]]:
    """Names that are read as an attribute or stand in a string, and beginnings of names that are composed."""
    names: set[str] = set()
    prefixes: set[str] = set()
    for root in ROOTS:
        for path in root.rglob("*.py"):
            if path.is_relative_to(CONVERTER):
                continue
            with warnings.catch_warnings(action="ignore", category=SyntaxWarning):
                tree = ast.parse(path.read_text())
            for node in _effective(tree) if path == ARGUMENTS else ast.walk(tree):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    names.add(node.attr)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str) and path != ARGUMENTS:
                    names.add(node.value)
                elif isinstance(node, ast.Call) and ast.unparse(node.func) == "_kwargs_from_config":
                    # It reads `{prefix}_{parameter}` for each parameter of an optimizer.
                    prefixes |= {f"{part.value}_" for part in node.args if isinstance(part, ast.Constant)}
    return names, prefixes


def _effective(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes of the definitions and checks of the arguments, without what only refuses or warns."""
    if _only_refuses(node):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _effective(child)


def _only_refuses(node: ast.AST) -> bool:
    if isinstance(node, ast.Assert | ast.Raise | ast.Delete):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        function = ast.unparse(node.value.func)
        return function.startswith(("warn", "print", "logger", "logging"))
    if not isinstance(node, ast.If | ast.For):
        return False
    inner = [*node.body, *node.orelse]
    return any(map(_only_refuses, inner)) and all(_only_refuses(each) or _is_local(each) for each in inner)


def _is_local(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and all(isinstance(target, ast.Name) for target in node.targets)
