"""Whether what cannot be read is at fault, or the volume that it is on."""

import errno
import re
from typing import Final

_OF_VOLUMES: Final = frozenset(
    {errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.EREMOTEIO, errno.ENODEV, errno.ENXIO}
)
"""Errors of disks, and of mounts whose server or daemon does not respond. Those of a hub that cannot be
reached are others: a refused connection, an unknown name, no route."""
_NUMBER: Final = re.compile(r"\[Errno (\d{1,4})\]")
_NUMBER_OF_RUST: Final = re.compile(r"\(os error (\d{1,4})\)")
_LOADER: Final = "DataLoader worker"
_KILLED: Final = "killed by signal: Bus error"
"""What the kernel does to a process that reads a mapped file which its volume does not return."""


def is_temporary(error: BaseException) -> bool:
    """Whether an error, or one that it was raised for, is of a volume: a retry may read it."""
    return of_volume(error) is not None


def of_volume(error: BaseException) -> OSError | None:
    """The error of a volume that an error is, or was raised for; None where it is none of a volume."""
    found = (each for each in _chain(error) if isinstance(each, OSError) and _number(each) in _OF_VOLUMES)
    return next(found, None)


def _number(error: OSError) -> int | None:
    """The number of the system, which safetensors, written in Rust, has in its text alone."""
    if error.errno is None and (text := _NUMBER_OF_RUST.search(str(error))):
        return int(text[1])
    return error.errno


def is_temporary_in_step(error: BaseException) -> bool:
    """The same, also of an error that a process of the data loader met: the rank gets its text alone."""
    return is_temporary(error) or any(_is_of_loader(str(each)) for each in _chain(error))


def _is_of_loader(text: str) -> bool:
    numbers = {int(number) for number in _NUMBER.findall(text)}
    return _LOADER in text and (_KILLED in text or not numbers.isdisjoint(_OF_VOLUMES))


def _chain(error: BaseException) -> list[BaseException]:
    """The error, and those that it was raised for."""
    chain: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in chain:
        chain.append(each)
        each = each.__cause__ or each.__context__
    return chain
