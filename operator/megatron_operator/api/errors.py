"""Errors of the operator package: OperatorError is the base class of them all.

A validation error always names the field, what is wrong with which values, and what to set instead.
"""

import json
import re
from dataclasses import dataclass
from typing import Final

LONGEST_SHOWN: Final = 80
"""Characters of a value in a message."""

_PLAIN_KEY: Final = re.compile(r"[-\w./]{1,120}", re.ASCII)


def shown(value: object) -> str:
    """A value as a message shows it: its `repr`, shortened, because anything may stand in a recipe.

    True, False and None as in YAML.
    """
    text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 4]}...{text[-1]}"


def described(error: BaseException) -> str:
    """The message of an error; its class where it has none, as a time-out."""
    return str(error) or type(error).__name__


def field_path(at: str, part: int | str) -> str:
    """The path of a field or list index below `at`; a key that is no plain word is quoted and shortened."""
    if isinstance(part, int):
        return f"{at}[{part}]"
    return f"{at}.{part}" if _PLAIN_KEY.fullmatch(part) else f"{at}[{shown(part)}]"


def shown_key(key: str) -> str:
    """A name as a message shows it: quoted and shortened unless it is a plain word."""
    return key if _PLAIN_KEY.fullmatch(key) else shown(key)


class OperatorError(Exception):
    """Base class of the errors that this package raises."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """One validation error of a recipe.

    `field` is the path from the root of the object (`spec.parallelism.tensorModelParallelSize`), `message`
    what is wrong with the value, `fix` what to set instead.
    """

    field: str
    message: str
    fix: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}; {self.fix}"


@dataclass(frozen=True, slots=True)
class UnsuitableBatch(FieldError):
    """The error of a global batch size that no layout divides; `suitable` are the nearest ones."""

    suitable: tuple[int, ...] = ()


class InvalidRecipeError(OperatorError):
    """A recipe, or a file that it depends on, cannot be used as written.

    `errors` has every error that was found, not only the first. Raises ValueError for an empty list.
    """

    def __init__(self, errors: list[FieldError]) -> None:
        if not errors:
            raise ValueError("InvalidRecipeError needs at least one FieldError")
        super().__init__("\n".join(map(str, errors)))
        self.errors = errors

    def __reduce__(self) -> tuple[type["InvalidRecipeError"], tuple[list[FieldError]]]:
        """Pickle by the errors, not by the text."""
        return type(self), (self.errors,)


class PlanningLimitError(InvalidRecipeError):
    """A recipe whose planning exceeds the limits of time or memory.

    Planning it again has the same outcome until recipe, platform, catalog or operator change.
    """
