"""Trackers where something fails: volumes, processes, and servers that are none of MLflow."""

import json
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic

import pytest
from megatron_contract.tracking import MlflowRun, Tracking
from megatron_trainer.tracking import command, processes
from megatron_trainer.tracking.event_file import EventFiles
from megatron_trainer.tracking.mlflow_server import MlflowServer
from megatron_trainer.tracking.processes import TrackingProcesses
from megatron_trainer.tracking.scalar_log import Position, Scalars, load_position
from megatron_trainer.tracking.tracker import Follower, TrackerError

LINE = '{"iteration": %d, "generation": %d, "time": 1, "values": {"a": 1}}\n'


class Memory:
    """A tracker that keeps what it is sent, and fails at the writes of `failing`."""

    settle_seconds = 0.0
    run = "memory"

    def __init__(self, rewrites: bool = False, failing: tuple[int, ...] = ()) -> None:
        self.rewrites = rewrites
        self.points: list[int] = []
        self.ending = ""
        self._failing = failing
        self._writes = 0

    def open(self, position: Position) -> int | None:
        return None if position.run == self.run else -1

    def rewind(self, iteration: int) -> None:
        self.points = [each for each in self.points if each < iteration]

    def write(self, scalars: list[Scalars]) -> None:
        self._writes += 1
        if self._writes in self._failing:
            raise TrackerError("no")
        self.points += [each.iteration for each in scalars]

    def close(self, ending: str) -> None:
        self.ending = ending


def follower(folder: Path, tracker: Memory, waits: Iterator[Callable[[], str | None]]) -> Follower:
    """A follower of `folder`, which calls the next of `waits` instead of waiting."""
    return Follower(
        tracker,
        folder / "scalars.jsonl",
        folder / "positions" / "memory.json",
        lambda _: next(waits)(),
        lambda _: None,
    )


def finish() -> str:
    return "finished"


def test_a_position_that_cannot_be_saved_neither_ends_a_tracker_nor_repeats_values(tmp_path: Path) -> None:
    (tmp_path / "positions").write_text("no folder")
    scalars = tmp_path / "scalars.jsonl"
    scalars.write_text(LINE % (1, 1))

    def append() -> None:
        with scalars.open("a") as file:
            file.write(LINE % (2, 1))

    tracker = Memory()
    assert follower(tmp_path, tracker, iter([append, finish])).follow()
    assert tracker.points == [1, 2]


def test_scalars_that_cannot_be_read_are_read_later(tmp_path: Path) -> None:
    scalars = tmp_path / "scalars.jsonl"
    scalars.mkdir()

    def repair() -> None:
        scalars.rmdir()
        scalars.write_text(LINE % (1, 1))

    tracker = Memory()
    assert follower(tmp_path, tracker, iter([repair, finish])).follow()
    assert tracker.points == [1]


def test_scalars_that_stay_unreadable_end_the_run_but_are_not_complete(tmp_path: Path) -> None:
    (tmp_path / "scalars.jsonl").mkdir()
    tracker = Memory()
    assert not follower(tmp_path, tracker, iter([finish])).follow()
    assert tracker.ending == "finished"


def test_another_run_of_the_tracker_gets_the_whole_curve(tmp_path: Path) -> None:
    (tmp_path / "scalars.jsonl").write_text(LINE % (1, 1) + LINE % (2, 1))
    first, second, again = Memory(), Memory(), Memory()
    assert follower(tmp_path, first, iter([finish])).follow()
    second.run = "another"
    assert follower(tmp_path, second, iter([finish])).follow()
    assert second.points == first.points == [1, 2]
    assert load_position(tmp_path / "positions" / "memory.json").run == "another"
    again.run = "another"
    assert follower(tmp_path, again, iter([finish])).follow()
    assert again.points == []


def test_a_failed_write_behind_a_rewind_does_not_repeat_what_is_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [LINE % (each, 1) for each in (1, 2, 3)] + [LINE % (each, 2) for each in (3, 4)]
    (tmp_path / "scalars.jsonl").write_text("".join(lines))
    tracker = Memory(rewrites=True, failing=(2,))
    monkeypatch.setattr("megatron_trainer.tracking.tracker.RETRY_SECONDS", (0.0,))
    assert follower(tmp_path, tracker, iter([finish])).follow()
    assert tracker.points == [1, 2, 3, 4]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Writes beyond `size` fail after a part of them, as on a full volume."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_write_that_fails_in_its_middle_leaves_no_torn_record(tmp_path: Path) -> None:
    events = EventFiles(tmp_path)
    with largest_file(10), pytest.raises(OSError, match="too large"):
        events.open(Position())
    events.open(Position())
    (file,) = tmp_path.iterdir()
    start = file.stat().st_size
    events.write([Scalars(1, 1, 1.0, {"a": 1.0})])
    record = file.stat().st_size - start
    with largest_file(start + record + 10), pytest.raises(OSError, match="too large"):
        events.write([Scalars(2, 1, 1.0, {"a": 1.0})])
    assert file.stat().st_size == start + record + 10
    events.write([Scalars(2, 1, 1.0, {"a": 1.0})])
    assert file.stat().st_size == start + 2 * record
    assert [length for length, _ in records(file.read_bytes())][1:] == [record - 16] * 2


def records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Lengths and messages of a file's records."""
    while data:
        length = int.from_bytes(data[:8], "little")
        assert len(data) >= length + 16, "torn"
        yield length, data[12 : 12 + length]
        data = data[length + 16 :]


class Started:
    """TrackingProcesses with another program in place of the tracker."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
        self.lines: list[str] = []
        self.words = folder / "words"
        self.found: list[subprocess.Popen[bytes]] = []
        arguments = [sys.executable, "-c", program, str(self.words)]

        def start(_: TrackingProcesses, __: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert process.stdout is not None
            # It is ready for signals.
            process.stdout.readline()
            self.found.append(process)
            return process

        monkeypatch.setattr(TrackingProcesses, "_start", start)
        self.processes = TrackingProcesses(Tracking(tensorboard=True), folder, [], self.lines.append)
        self.processes.start()
        while not self.found:
            threading.Event().wait(0.01)


READ_WORD = "import sys; print(flush=True); w = sys.stdin.readline(); open(sys.argv[1], 'w').write(w)"
IGNORE_WORD = "import sys, time; print(flush=True); sys.stdin.readline(); time.sleep(600)"


def test_the_trackers_of_a_fenced_pod_are_killed_without_an_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = Started(tmp_path, monkeypatch, READ_WORD)
    started.processes.close(None)
    assert started.found[0].returncode == -signal.SIGKILL
    assert not started.words.exists()
    assert started.lines == []


def test_a_tracker_reads_how_the_run_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = Started(tmp_path, monkeypatch, READ_WORD)
    started.processes.close("failed")
    assert started.found[0].returncode == 0
    assert started.words.read_text() == "failed\n"


def test_sigterm_shortens_the_wait_for_trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(processes.END_SECONDS, "finished", 600.0)  # type: ignore[arg-type]
    monkeypatch.setitem(processes.END_SECONDS, "stopped", 0.2)  # type: ignore[arg-type]
    started = Started(tmp_path, monkeypatch, IGNORE_WORD)
    started.processes.close("finished", lambda: True)
    assert started.found[0].returncode == -signal.SIGKILL
    assert "not all is recorded" in started.lines[0]


def test_a_tracker_that_cannot_be_killed_does_not_keep_the_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(processes.END_SECONDS, "stopped", 0.1)  # type: ignore[arg-type]
    monkeypatch.setattr(processes, "_KILL_SECONDS", 0.2)
    started = Started(tmp_path, monkeypatch, IGNORE_WORD)
    process = started.found[0]
    # As in an uninterruptible sleep.
    monkeypatch.setattr(process, "kill", lambda: None)
    before = monotonic()
    started.processes.close("stopped")
    assert monotonic() - before < 60
    assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_a_tracker_that_cannot_be_started_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_RESTART_SECONDS", 0.05)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    attempts: list[str] = []
    twice = threading.Event()

    def log(text: str) -> None:
        attempts.append(text)
        if len(attempts) == 2:
            twice.set()

    started = TrackingProcesses(Tracking(tensorboard=True), tmp_path, [], log)
    started.start()
    assert twice.wait(60)
    started.close("stopped")
    assert "tensorboard: the tracker cannot be started: [Errno 2]" in attempts[0]


@pytest.mark.parametrize(("text", "together"), [("1\n", True), ("0\n", False), (None, False)])
def test_a_tracker_is_first_to_be_killed_only_where_it_is_killed_alone(
    tmp_path: Path, text: str | None, together: bool
) -> None:
    if text is not None:
        (tmp_path / "memory.oom.group").write_text(text)
    assert command.killed_together(tmp_path) is together


@contextmanager
def http_server(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def open_mlflow(url: str) -> int | None:
    return MlflowServer(MlflowRun(url, "tests"), "uid", {}).open(Position())


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_credentials_do_not_follow_a_redirect(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret-token")
    requests: list[str] = []

    def other(handler: BaseHTTPRequestHandler) -> None:
        requests.append(handler.path)
        handler.send_response(200)
        handler.end_headers()

    with http_server(other) as target:

        def redirect(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(status)
            handler.send_header("Location", f"{target}/login?next=x")
            handler.end_headers()

        with http_server(redirect) as url, pytest.raises(TrackerError) as raised:
            open_mlflow(url)
        assert str(raised.value).endswith(f" redirects to {target}/login; correct trackingUri")
    assert requests == []


def send(handler: BaseHTTPRequestHandler, data: bytes) -> None:
    handler.wfile.write(data)
    handler.close_connection = True


@pytest.mark.parametrize(
    "data",
    [
        b"no status line\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 500 no\r\nTransfer-Encoding: chunked\r\n\r\nzz",
        b"HTTP/1.1 200 OK\r\n\r\n<html>",
        b"",
    ],
)
def test_a_server_that_breaks_off_is_one_that_cannot_be_reached(data: bytes) -> None:
    with (
        http_server(lambda handler: send(handler, data)) as url,
        pytest.raises(TrackerError, match="cannot be reached"),
    ):
        open_mlflow(url)


@pytest.mark.parametrize("value", [{}, [], {"experiment": []}])
def test_a_server_that_is_none_of_mlflow_is_reported(value: object) -> None:
    data = b"HTTP/1.1 200 OK\r\n\r\n" + json.dumps(value).encode()
    with (
        http_server(lambda handler: send(handler, data)) as url,
        pytest.raises(TrackerError, match="answers unlike MLflow"),
    ):
        open_mlflow(url)


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999", "http://127.0.0.1:abc", "http://a b"])
def test_a_url_that_cannot_be_used_is_reported(url: str) -> None:
    with pytest.raises(TrackerError, match="cannot be reached"):
        open_mlflow(url)
