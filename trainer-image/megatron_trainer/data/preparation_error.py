"""The error of `megatron-prepare`."""

from megatron_contract.exit_codes import ExitCode

from megatron_trainer.errors import TrainerError


class PreparationError(TrainerError):
    """The corpus cannot be built. The text names the problem and the remedy; `code` is the exit code."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class NoFilesError(PreparationError):
    """A source has no file or object."""
