"""Collector of what resolving and planning a recipe find out about it."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from megatron_operator.api.errors import FieldError, InvalidRecipeError


@dataclass(slots=True)
class Diagnostics:
    """Errors, notes and the origins of values, in the order in which they were found."""

    errors: list[FieldError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was chosen or changed, and why."""
    origins: dict[str, str] = field(default_factory=dict)
    """Path of a value below `spec` -> where it came from: `recipe`, `catalog llama3-8b`, `platform`."""

    def error(self, path: str, message: str, fix: str) -> None:
        """Add an error; `path` is the field, `message` what is wrong with it, `fix` what to set instead."""
        self.errors.append(FieldError(path, message, fix))

    def extend(self, errors: Iterable[FieldError]) -> None:
        """Add errors."""
        self.errors.extend(errors)

    def note(self, text: str) -> None:
        """Add a note."""
        self.notes.append(text)

    def origin(self, path: str, source: str) -> None:
        """Record where the value of `path` came from."""
        self.origins[path] = source

    def is_set_by_user(self, path: str) -> bool:
        """Whether the recipe itself sets the value of `path`."""
        return self.origins.get(path) == "recipe"

    def raise_errors(self) -> None:
        """Raise InvalidRecipeError with all errors, if there are any."""
        if self.errors:
            raise InvalidRecipeError(self.errors)
