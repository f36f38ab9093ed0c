"""Errors of the test kit."""


class TestkitError(Exception):
    """Base of all errors that the test kit raises itself; a wait that runs out raises TimeoutError."""

    __test__ = False


class CommandFailedError(TestkitError):
    """kubectl or helm exited with an error; the message holds its output."""


class ApiError(TestkitError):
    """The API server answered with an HTTP error status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class RunEndedError(TestkitError):
    """A run ended before it reached the expected state."""
