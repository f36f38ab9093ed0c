"""Whether what cannot be read is at fault, or the volume that it is on."""

import errno
from typing import Final

_OF_THE_FILE: Final = frozenset(
    {
        *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM),
        *(errno.ELOOP, errno.ENAMETOOLONG),
        errno.EINVAL,  # of a seek to an offset that only damaged bytes ask for
    }
)
"""Errors that the next read meets too."""


def is_temporary(error: BaseException) -> bool:
    """Whether an error, or one that it was raised for, is of a volume or a network: a retry may read it.

    Libraries raise OSErrors without a number for files whose content is wrong.
    """
    seen: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in seen:
        if isinstance(each, OSError) and each.errno is not None and each.errno not in _OF_THE_FILE:
            return True
        seen.append(each)
        each = each.__cause__ or each.__context__
    return False
