"""One validation rule across fields, and how rules are written down."""

from dataclasses import dataclass

from megatron_operator.api.cel import Expression, Message, at_most_one


@dataclass(frozen=True, slots=True)
class Rule:
    """`holds` must be true of the object at `at`; otherwise `field` below it, or itself, is reported.

    `at` ends with `{}` for each value of a map, with `[]` for each item of a list.
    """

    at: str
    field: str
    holds: Expression
    message: Message
    fix: str

    @property
    def path(self) -> str:
        """Path of the reported field from the root of the object."""
        return f"{self.at}.{self.field}" if self.field else self.at

    @property
    def text(self) -> Message:
        """Message and fix in one."""
        return Message(f"{self.message.template}; {self.fix}", self.message.values)


def rule(at: str, name: str, holds: Expression, message: str, fix: str, *values: Expression) -> Rule:
    """A rule whose message has a place for each of `values`."""
    return Rule(at, name, holds, Message(message, values), fix)


def exclusive(at: str, first: str, second: str, fix: str) -> Rule:
    """The rule that two fields are not set together; the second is reported."""
    return rule(at, second, at_most_one(first, second), f"is set together with {first}", fix)
