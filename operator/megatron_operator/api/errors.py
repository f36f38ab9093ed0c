"""Refusals: always the field, what is wrong with which numbers, and what to set instead."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FieldError:
    """One thing wrong with a recipe.

    `field` is the path below the object (`spec.parallelism.tensorModelParallelSize`), `message` what is wrong
    with the numbers, `fix` what to set instead.
    """

    field: str
    message: str
    fix: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}; {self.fix}"


class Refused(Exception):
    """A recipe cannot be run as written. Carries every reason that was found, not the first alone."""

    def __init__(self, errors: list[FieldError]) -> None:
        if not errors:
            raise ValueError("a refusal needs at least one reason")
        super().__init__("\n".join(map(str, errors)))
        self.errors = errors
