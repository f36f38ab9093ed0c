"""Expressions that are defined once: CEL for the API server, a Python function for offline validation.

The Python function is a twin of the CEL text; the control-plane tests hold both to the same results. Running
the CEL text itself offline was measured with cel-python 0.5.0: it lacks Kubernetes' `sum` and `format`, and
importing it and compiling the rules takes 0.5 s, nearly as long as `megatron validate` takes in all.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Expression:
    """A value computed from the fields of one object of the resource (`self` in CEL)."""

    cel: str
    evaluate: Callable[[Fields], Any]

    def _with(self, operator: str, other: "Expression | float | str | bool", apply: Any) -> "Expression":
        right = other if isinstance(other, Expression) else constant(other)
        return Expression(
            f"({self.cel} {operator} {right.cel})", lambda f: apply(self.evaluate(f), right.evaluate(f))
        )

    def __and__(self, other: "Expression") -> "Expression":
        return Expression(f"({self.cel} && {other.cel})", lambda f: self.evaluate(f) and other.evaluate(f))

    def __or__(self, other: "Expression") -> "Expression":
        return Expression(f"({self.cel} || {other.cel})", lambda f: self.evaluate(f) or other.evaluate(f))

    def __invert__(self) -> "Expression":
        return Expression(f"!{self.cel}", lambda f: not self.evaluate(f))

    def __mod__(self, other: "Expression | int") -> "Expression":
        return self._with("%", other, lambda a, b: a % b)

    def __mul__(self, other: "Expression | int") -> "Expression":
        return self._with("*", other, lambda a, b: a * b)

    def __le__(self, other: "Expression | int") -> "Expression":
        return self._with("<=", other, lambda a, b: a <= b)

    def __ge__(self, other: "Expression | int") -> "Expression":
        return self._with(">=", other, lambda a, b: a >= b)

    def __lt__(self, other: "Expression | int") -> "Expression":
        return self._with("<", other, lambda a, b: a < b)

    def equals(self, other: "Expression | float | str | bool") -> "Expression":
        """CEL's `==`. Python's `==` keeps its meaning, so that expressions stay hashable."""
        return self._with("==", other, lambda a, b: a == b)


def constant(value: float | str | bool) -> Expression:
    """A literal."""
    match value:
        case bool():
            text = "true" if value else "false"
        case str():
            text = "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
        case _:
            text = str(value)
    return Expression(text, lambda _: value)


def _lookup(fields: Fields, path: str) -> Any:
    """The value at a dotted path, or None."""
    value: Any = fields
    for name in path.split("."):
        if not isinstance(value, Mapping) or value.get(name) is None:
            return None
        value = value[name]
    return value


def is_set(path: str) -> Expression:
    """Whether the field at a dotted path is set. A null is not, as for the API server."""
    names = path.split(".")
    chain = " && ".join(f"has(self.{'.'.join(names[: i + 1])})" for i in range(len(names)))
    return Expression(f"({chain})", lambda f: _lookup(f, path) is not None)


def field(path: str, default: float | str | bool) -> Expression:
    """The field at a dotted path, or `default` where it is not set."""

    def value(fields: Fields) -> Any:
        found = _lookup(fields, path)
        return default if found is None else found

    return Expression(f"({is_set(path).cel} ? self.{path} : {constant(default).cel})", value)


def is_true(path: str) -> Expression:
    """Whether a boolean field is set to true."""
    return field(path, False)


def is_false(path: str) -> Expression:
    """Whether a boolean field is set to false."""
    return ~field(path, True)


def at_most_one(*paths: str) -> Expression:
    """Whether no two of the fields are set."""
    each = ", ".join(f"{is_set(path).cel} ? 1 : 0" for path in paths)
    return Expression(
        f"([{each}].sum() <= 1)", lambda f: sum(_lookup(f, path) is not None for path in paths) <= 1
    )


def exactly_one(*paths: str) -> Expression:
    """Whether one of the fields is set, and only one."""
    any_set = functools.reduce(Expression.__or__, map(is_set, paths))
    return any_set & at_most_one(*paths)


@dataclass(frozen=True, slots=True)
class Message:
    """A message with integers in it: each `{}` of the template stands for the next value."""

    template: str
    values: tuple[Expression, ...] = ()

    def format(self, fields: Fields) -> str:
        """The message for the object with these fields."""
        return self.template.format(*(value.evaluate(fields) for value in self.values))

    @property
    def cel(self) -> str:
        """The message as a CEL expression.

        It uses `format` because the API server estimates the cost of `+ string(...)` as unbounded.
        """
        template = self.template.replace("%", "%%").replace("{}", "%d")
        return f"{constant(template).cel}.format([{', '.join(value.cel for value in self.values)}])"
