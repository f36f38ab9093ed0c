"""An I/O error of a volume is not taken for wrong content of a file, nor the other way round."""

import errno
import os
import socket
from pathlib import Path

import pytest
from megatron_trainer.read_errors import is_temporary

# Reads of address 0 of a process's memory fail with EIO.
FAILING = Path("/proc/self/mem")


def raised_by_a_library(error: Exception, *, explicitly: bool) -> Exception:
    """The error that a library raises for one that it has met."""
    try:
        try:
            raise error
        except Exception as met:
            if explicitly:
                raise ValueError("not a sample") from met
            raise ValueError("not a sample")  # noqa: B904
    except ValueError as found:
        return found


def test_an_error_that_a_volume_returns_is_temporary() -> None:
    with pytest.raises(OSError, match="Input/output error") as raised:
        FAILING.read_bytes()
    assert is_temporary(raised.value)


@pytest.mark.parametrize("code", [errno.ENOTCONN, errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO])
@pytest.mark.parametrize("explicitly", [True, False])
def test_what_a_library_raises_for_a_temporary_error_is_temporary(code: int, explicitly: bool) -> None:
    error = OSError(code, os.strerror(code))
    assert is_temporary(error)
    assert is_temporary(raised_by_a_library(error, explicitly=explicitly))


def test_an_error_of_rust_has_its_number_in_its_text() -> None:
    assert is_temporary(OSError("Stale file handle (os error 116)"))
    assert not is_temporary(OSError("No such file or directory (os error 2)"))


@pytest.mark.parametrize("code", [errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM])
def test_a_file_that_is_missing_or_closed_stays_so(code: int) -> None:
    error = OSError(code, os.strerror(code))
    assert not is_temporary(error)
    assert not is_temporary(raised_by_a_library(error, explicitly=True))


@pytest.mark.parametrize(
    "error",
    [ConnectionRefusedError(errno.ECONNREFUSED, "refused"), socket.gaierror(socket.EAI_AGAIN, "name")],
)
def test_a_hub_that_cannot_be_reached_is_no_volume(error: OSError) -> None:
    assert not is_temporary(raised_by_a_library(error, explicitly=False))


@pytest.mark.parametrize("error", [OSError("no tokenizer in this folder"), ValueError("no number")])
def test_an_error_without_a_number_is_of_the_content(error: Exception) -> None:
    assert not is_temporary(error)


def test_a_seek_that_damaged_bytes_ask_for_is_not_temporary(tmp_path: Path) -> None:
    (tmp_path / "0.tar").touch()
    with (tmp_path / "0.tar").open("rb") as stream, pytest.raises(OSError, match="Invalid") as raised:
        stream.seek(-1)
    assert not is_temporary(raised.value)


def test_an_error_that_is_its_own_cause_is_not_followed_without_end() -> None:
    error = ValueError("not a sample")
    error.__cause__ = error
    assert not is_temporary(error)
