"""The errors of `megatron-convert`."""

from megatron_trainer.errors import TrainerError


class ConversionError(TrainerError):
    """The input cannot be converted. The text names what is wrong and what to do."""


class AuditError(TrainerError):
    """The result of a conversion differs from its source."""


class DestinationExistsError(TrainerError):
    """The destination of a conversion exists already."""


class DownloadError(TrainerError):
    """A hub cannot be reached, or fails: another try may succeed."""
