"""Small expressions, defined once: CEL for the API server, a Python function offline."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Expression:
    """A value computed from the fields of one object of the resource (`self` in CEL)."""

    cel: str
    of: Callable[[Fields], Any]

    def _with(self, operator: str, other: "Expression | float | str | bool", apply: Any) -> "Expression":
        right = other if isinstance(other, Expression) else constant(other)
        return Expression(f"({self.cel} {operator} {right.cel})", lambda f: apply(self.of(f), right.of(f)))

    def __and__(self, other: "Expression") -> "Expression":
        return Expression(f"({self.cel} && {other.cel})", lambda f: self.of(f) and other.of(f))

    def __or__(self, other: "Expression") -> "Expression":
        return Expression(f"({self.cel} || {other.cel})", lambda f: self.of(f) or other.of(f))

    def __invert__(self) -> "Expression":
        return Expression(f"!{self.cel}", lambda f: not self.of(f))

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
        """CEL's ==; the Python operator is left alone."""
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


def _look(fields: Fields, path: str) -> Any:
    """The value at a dotted path, or None."""
    value: Any = fields
    for name in path.split("."):
        if not isinstance(value, Mapping) or value.get(name) is None:
            return None
        value = value[name]
    return value


def said(path: str) -> Expression:
    """Whether the field at a dotted path is there."""
    names = path.split(".")
    chain = " && ".join(f"has(self.{'.'.join(names[: i + 1])})" for i in range(len(names)))
    return Expression(f"({chain})", lambda f: _look(f, path) is not None)


def field(path: str, default: float | str | bool) -> Expression:
    """The field at a dotted path, or `default` where it is not there."""

    def value(fields: Fields) -> Any:
        found = _look(fields, path)
        return default if found is None else found

    return Expression(f"({said(path).cel} ? self.{path} : {constant(default).cel})", value)


def on(path: str) -> Expression:
    """Whether a switch is there and true."""
    return field(path, False)


def off(path: str) -> Expression:
    """Whether a switch is there and false."""
    return ~field(path, True)


def at_most_one(*paths: str) -> Expression:
    """Whether no two of the fields are there."""
    each = ", ".join(f"{said(path).cel} ? 1 : 0" for path in paths)
    return Expression(
        f"([{each}].sum() <= 1)", lambda f: sum(_look(f, path) is not None for path in paths) <= 1
    )


@dataclass(frozen=True, slots=True)
class Text:
    """Words with whole numbers in them: `{}` stands for the next expression."""

    words: str
    numbers: tuple[Expression, ...] = ()

    def of(self, fields: Fields) -> str:
        return self.words.format(*(number.of(fields) for number in self.numbers))

    @property
    def cel(self) -> str:
        """The same text in CEL. `format` alone: the cost of `+ string(...)` is estimated as unbounded."""
        words = self.words.replace("%", "%%").replace("{}", "%d")
        return f"{constant(words).cel}.format([{', '.join(number.cel for number in self.numbers)}])"
