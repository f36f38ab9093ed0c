"""Errors of a command that are not errors of a recipe."""

from megatron_operator.api.errors import FieldError, OperatorError


class CommandError(OperatorError):
    """A command cannot do its work: a file, kubectl or the cluster does not provide what it needs."""

    def __init__(self, where: str, message: str, fix: str) -> None:
        self.errors = [FieldError(where, message, fix)]
        super().__init__(str(self.errors[0]))
