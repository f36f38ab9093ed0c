"""Whether what cannot be read is at fault, or the volume that it is on."""

import errno
from typing import Final

_OF_VOLUMES: Final = frozenset(
    {errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.EREMOTEIO, errno.ENODEV, errno.ENXIO}
)
"""Errors of disks, and of mounts whose server or daemon does not respond. Those of a hub that cannot be
reached are others: a refused connection, an unknown name, no route."""


def is_temporary(error: BaseException) -> bool:
    """Whether an error, or one that it was raised for, is of a volume: a retry may read it."""
    seen: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in seen:
        if isinstance(each, OSError) and each.errno in _OF_VOLUMES:
            return True
        seen.append(each)
        each = each.__cause__ or each.__context__
    return False
