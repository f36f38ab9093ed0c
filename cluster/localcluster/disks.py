"""A disk of a few MiB over a folder, for the host and for every node, which tests can fill.

The nodes' mount namespaces do not receive later mounts of the host, so a clone of the mount is moved into
each of them (open_tree(2), move_mount(2), Linux 5.2).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from localcluster.commands import run
from localcluster.errors import ClusterError

_OPEN_TREE, _OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 428, 1, os.O_CLOEXEC
_AT_FDCWD = -100

# Joins the mount namespace of a process and puts the mount behind a file descriptor at a path.
_MOVE = """
import ctypes, os, sys
pid, descriptor, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode()
libc = ctypes.CDLL(None, use_errno=True)
namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
if libc.setns(namespace, 0x20000) or libc.syscall(429, descriptor, b"", -100, path, 4):
    sys.exit(os.strerror(ctypes.get_errno()))
"""


@contextlib.contextmanager
def small_disk(folder: Path, mebibytes: int, inits: Sequence[int]) -> Iterator[None]:
    """Mount an empty tmpfs at `folder`, on the host and in the nodes with the PIDs 1 `inits`.

    Its size is `mebibytes` MiB. Earlier mounts of running pods do not change. Raises ClusterError with the
    kernel's message.
    """
    run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m,mode=777", "small-disk", folder])
    try:
        for init in inits:
            _clone_into(folder, init)
        yield
    finally:
        for init in inits:
            # A node that was restarted meanwhile has lost the mount with its namespace.
            with contextlib.suppress(ClusterError):
                run(["nsenter", "--target", str(init), "--mount", "umount", "--lazy", folder])
        run(["umount", "--lazy", folder])


def _clone_into(folder: Path, init: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC
    descriptor = libc.syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(folder), flags)
    if descriptor < 0:
        raise ClusterError(f"{folder} cannot be cloned: {os.strerror(ctypes.get_errno())}")
    try:
        args = [sys.executable, "-c", _MOVE, str(init), str(descriptor), str(folder)]
        done = subprocess.run(args, pass_fds=(descriptor,), capture_output=True, text=True, check=False)
        if done.returncode:
            raise ClusterError(f"{folder} cannot be mounted in a node: {done.stderr.strip()}")
    finally:
        os.close(descriptor)
