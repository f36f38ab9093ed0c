"""Output to a real pipe whose reader comes late or not at all."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from megatron_trainer.launcher.log_output import LogOutput

KEPT = 10_000


class Pipe:
    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)

    def read(self) -> bytes:
        """Return what is in the pipe."""
        found = b""
        while True:
            try:
                part = os.read(self.reading, 1 << 16)
            except BlockingIOError:
                return found
            if not part:
                return found
            found += part


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    for file in (pipe.reading, pipe.writing):
        os.close(file)


def lines(first: int, last: int) -> bytes:
    return b"".join(b"line %06d\n" % number for number in range(first, last))


def read_all(pipe: Pipe, output: LogOutput) -> bytes:
    found = pipe.read()
    while output.waits:
        output.write()
        found += pipe.read()
    return found


def test_output_arrives_at_once_and_unchanged(pipe: Pipe) -> None:
    output = LogOutput(pipe.writing)
    output.add(b"one\ntw")
    output.add(b"o\n")
    assert pipe.read() == b"one\ntwo\n"
    assert not output.waits


def test_what_the_pipe_does_not_take_is_written_when_it_is_read(pipe: Pipe) -> None:
    output = LogOutput(pipe.writing)
    output.add(lines(0, 20_000))
    assert output.waits
    assert read_all(pipe, output) == lines(0, 20_000)


def test_the_oldest_lines_are_dropped_and_their_bytes_reported(pipe: Pipe) -> None:
    output = LogOutput(pipe.writing, most=KEPT)
    written = b""
    for first in range(0, 50_000, 1000):
        output.add(lines(first, first + 1000))
        written += lines(first, first + 1000)
    found = read_all(pipe, output)
    before, dropped, after = re.split(rb"\n?(\d+) bytes of the ranks' output were dropped: .*\n", found)
    assert written.startswith(before)
    assert written.endswith(after)
    assert len(before) + int(dropped) + len(after) in (len(written), len(written) - 1)
    assert KEPT - len(b"line 000000\n") < len(after) <= KEPT
    assert after.startswith(b"line ")
    output.add(b"more\n")
    assert pipe.read() == b"more\n"


def test_a_line_longer_than_the_buffer_is_cut(pipe: Pipe) -> None:
    output = LogOutput(pipe.writing, most=KEPT)
    output.add(b"x" * 200_000)
    assert read_all(pipe, output).endswith(b"were dropped: the log was not read\n" + b"x" * KEPT)


def test_the_pipe_stays_blocking_for_the_others_that_write_to_it(pipe: Pipe) -> None:
    LogOutput(pipe.writing).add(lines(0, 20_000))
    assert os.get_blocking(pipe.writing)


def test_a_log_whose_reader_is_gone_takes_everything() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    output = LogOutput(writing)
    output.add(b"unread\n")
    os.close(writing)
    assert not output.waits


def test_the_end_waits_for_no_reader(pipe: Pipe) -> None:
    output = LogOutput(pipe.writing)
    output.add(lines(0, 20_000))
    output.drain(0.05)
    assert output.waits


LAUNCHER = """
import os, sys
from megatron_trainer.launcher.log_output import finish_streams, replace_streams
replace_streams()
for number in range(3000):
    print(f"line {number:06}{'.' * 1000}", file=sys.stderr, flush=True)
    print(f"line {number:06}{'.' * 1000}")
if sys.argv[1:]:
    input()
finish_streams()
os._exit(3)
"""


def test_a_launcher_whose_log_nobody_reads_does_not_wait(pipe: Pipe) -> None:
    command = [sys.executable, "-c", LAUNCHER]
    done = subprocess.run(command, stdout=pipe.writing, stderr=pipe.writing, check=False)
    assert done.returncode == 3


def test_a_launcher_has_its_newest_lines_for_a_reader_that_returns() -> None:
    command = [sys.executable, "-c", LAUNCHER, "wait"]
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1) as launcher:
        assert launcher.stdin is not None
        assert launcher.stderr is not None
        first = launcher.stderr.readline()
        # Nobody reads stdout, where what is left waits for `finish_streams` alone.
        found = [first]
        while not found[-1].startswith(b"line 002999"):
            found.append(launcher.stderr.readline())
        launcher.stdin.write(b"\n")
        launcher.stdin.flush()
        assert launcher.wait() == 3
    assert first.startswith(b"line 000000.")
    text = b"".join(found)
    kept = [line for line in text.splitlines() if not line.startswith(b"line ")]
    assert all(
        re.fullmatch(rb"\d+ bytes of the launcher's output were dropped: .*", line) for line in kept if line
    )
