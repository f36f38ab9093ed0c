"""Who can use the gang's store, over real connections on loopback."""

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.rendezvous import store as store_module
from megatron_trainer.rendezvous import store_server
from megatron_trainer.rendezvous.store import GangStore, StoreLostError
from megatron_trainer.rendezvous.store_channel import (
    LONGEST_MESSAGE,
    NONCE_BYTES,
    PROOF_BYTES,
    Channel,
    ForgedMessageError,
    encode,
)
from megatron_trainer.telemetry.incidents import FailureKind, FailureReport
from megatron_trainer.termination import Ending

from testkit.ports import free_port

TOKEN = b"0123456789abcdef0123456789abcdef"


def connect(store: GangStore, seconds: float = 30) -> GangStore:
    store.connect(time.monotonic() + seconds, lambda: False)
    return store


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def host(port: int) -> GangStore:
    return connect(GangStore("localhost", port, host=True, token=TOKEN))


@pytest.mark.parametrize("token", [b"", b"another run's token, of some length"], ids=["none", "another"])
def test_a_pod_without_the_token_cannot_use_the_store(token: bytes, port: int, host: GangStore) -> None:
    stranger = GangStore("localhost", port, host=False, token=token)
    with pytest.raises(StoreLostError, match="refused this pod's token"):
        connect(stranger, 0.5)
    with pytest.raises(StoreLostError):
        stranger.end_run(Ending(ExitCode.INTERNAL, "ended by a stranger"))
    assert host.state().verdict is None


def test_a_torch_client_cannot_end_the_run(port: int, host: GangStore) -> None:
    distributed = pytest.importorskip("torch.distributed")
    with pytest.raises(distributed.DistError):
        distributed.TCPStore("localhost", port, is_master=False, timeout=timedelta(seconds=2))
    assert host.state().generation == 1


def test_a_pod_with_the_token_ends_the_run_for_all(port: int, host: GangStore) -> None:
    member = connect(GangStore("localhost", port, host=False, token=TOKEN))
    verdict = Ending(ExitCode.INTERNAL, "a bug")
    member.end_run(verdict)
    assert member.state().verdict == verdict
    host.set("any", "operation")
    assert host.state().verdict == verdict


@pytest.mark.usefixtures("host")
def test_a_message_much_longer_than_what_is_read_ahead_arrives(port: int) -> None:
    member = connect(GangStore("localhost", port, host=False, token=TOKEN))
    member.set("stacks/1/0", "x" * 1_000_000)
    assert member.get("stacks/1/0") == "x" * 1_000_000


def test_bytes_of_no_protocol_do_not_disturb_the_store(port: int, host: GangStore) -> None:
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 48, b"\xff" * 4096):
        with socket.create_connection(("localhost", port)) as stranger:
            stranger.sendall(data)
    host.set("key", "value")
    assert host.get("key") == "value"


def test_strangers_that_stay_connected_keep_no_pod_out(
    port: int, host: GangStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_server, "MAX_STRANGERS", 16)
    strangers = [socket.create_connection(("localhost", port)) for _ in range(20)]
    member = connect(GangStore("localhost", port, host=False, token=TOKEN))
    assert member.state().generation == host.state().generation == 1
    for stranger in strangers:
        stranger.close()


@pytest.fixture
def impostor(port: int) -> Iterator[int]:
    """Another pod with the Master pod's former address, which does not know the token."""
    with socket.create_server(("localhost", port)) as listener:

        def accept() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"n" * NONCE_BYTES)
                connection.recv(NONCE_BYTES + PROOF_BYTES, socket.MSG_WAITALL)
                connection.sendall(b"p" * PROOF_BYTES)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield port


def test_a_pod_believes_no_store_that_does_not_know_the_token(impostor: int) -> None:
    member = GangStore("localhost", impostor, host=False, token=TOKEN)
    with pytest.raises(StoreLostError, match="does not know the token of this run"):
        connect(member, 0.1)


def channels() -> tuple[Channel, Channel]:
    nonces = (b"a" * NONCE_BYTES, b"b" * NONCE_BYTES)
    return Channel(TOKEN, *nonces, host=False), Channel(TOKEN, *nonces, host=True)


def parts(sealed: bytes) -> tuple[bytes, bytes]:
    return sealed[4 : 4 + PROOF_BYTES], sealed[4 + PROOF_BYTES :]


def test_both_ends_read_what_the_other_sealed() -> None:
    pod, store = channels()
    store.check_proof(pod.proof)
    pod.check_proof(store.proof)
    for number in range(3):
        assert store.unseal(*parts(pod.seal(encode({"id": number})))) == {"id": number}
        assert pod.unseal(*parts(store.seal(encode({"value": number})))) == {"value": number}


def test_a_message_that_was_changed_repeated_or_sent_back_is_refused() -> None:
    pod, store = channels()
    code, text = parts(pod.seal(encode({"id": 1})))
    with pytest.raises(ForgedMessageError):
        store.unseal(code, text.replace(b"1", b"2"))
    with pytest.raises(ForgedMessageError):
        pod.unseal(code, text)
    assert store.unseal(code, text) == {"id": 1}
    with pytest.raises(ForgedMessageError):
        store.unseal(code, text)


def test_a_proof_cannot_be_sent_back() -> None:
    pod, _ = channels()
    with pytest.raises(ForgedMessageError):
        pod.check_proof(pod.proof)


def test_a_wait_asks_once_and_is_answered_when_the_last_key_is_there(port: int, host: GangStore) -> None:
    member = connect(GangStore("localhost", port, host=False, token=TOKEN))
    host.set("joined/1/0", "new")
    before = host.requests
    assert not any(host.reached("joined/1", 2) for _ in range(10))
    assert host.requests == before + 1
    member.set("joined/1/1", "new")
    host.set("joined/2/0", "new")
    assert host.reached("joined/1", 2)
    assert host.children("joined/1") == {"0": "new", "1": "new"}


def test_the_values_of_all_pods_may_be_longer_together_than_a_message(port: int, host: GangStore) -> None:
    """As the stacks of the ranks of 2,048 pods that hang."""
    member = connect(GangStore("localhost", port, host=False, token=TOKEN))
    stacks = {str(node): str(node) * (1 << 20) for node in range(LONGEST_MESSAGE // (1 << 20) + 1)}
    for node, text in stacks.items():
        member.set(f"stacks/1/{node}", text)
    assert host.children("stacks/1") == stacks
    assert host.connected


@pytest.mark.parametrize("text", ["x", '"', "\x01", "\U0001f600"], ids=ascii)
def test_a_page_of_values_is_shorter_than_a_message_whatever_their_characters(text: str) -> None:
    values = store_server.Values()
    for node in range(5):
        values.set(f"stacks/1/{node}", text * (store_server.PAGE // 2))
    found: dict[str, str] = {}
    while len(found) < 5:
        page, more = values.page("stacks/1", len(found))
        assert len(encode({"id": 1, "value": [page, more]})) < LONGEST_MESSAGE
        assert more == (len(found | page) < 5)
        found |= page
    assert found == values.children("stacks/1")
    assert values.page("stacks/2", 0) == ({}, False)


@pytest.mark.usefixtures("host")
def test_reading_the_state_costs_no_operation(port: int) -> None:
    member = connect(GangStore("localhost", port, host=False, token=TOKEN))
    before = member.requests
    for _ in range(10):
        member.state()
        member.get("plan/1")
    assert member.requests == before


def test_pods_stop_adding_causes_to_a_report_that_is_full(port: int, host: GangStore) -> None:
    """Else each of 2,048 pods would have a change sent to 2,048 pods."""
    members = [connect(GangStore("localhost", port, host=False, token=TOKEN)) for _ in range(24)]
    asked = []
    for rank, member in enumerate(members):
        member.get("any")  # its answer comes after the changes by the others
        before = member.requests
        cause = f"rank {rank} failed: {'x' * 100}"
        member.advance(1, FailureReport(FailureKind.RANK, cause, rank, detected_at=1000.0))
        asked.append(member.requests - before)
    assert asked[0] == 1
    assert not any(asked[12:])
    host.get("any")
    report = host.state().report
    assert report is not None
    assert report.cause.startswith("rank 0 failed")
    assert report.cause.endswith("; and others")


def test_a_pod_that_waits_has_what_the_store_sent(port: int, host: GangStore) -> None:
    member = connect(GangStore("localhost", port, host=False, token=TOKEN))
    host.advance(1, FailureReport(FailureKind.POD, "node 1 was replaced", 1))
    before = member.requests
    member.wait(60)
    assert member._shared["state"] == host.state().dumps()
    assert member.requests == before


@pytest.mark.usefixtures("host")
def test_a_store_that_stops_responding_is_lost(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "OPERATION_TIMEOUT", 0.2)
    member = connect(GangStore("localhost", port, host=False, token=TOKEN))
    connection = member._connection
    assert connection is not None
    # What the store sends no longer arrives, as from a node that is gone.
    monkeypatch.setattr(connection, "receive", lambda _deadline: None)
    with pytest.raises(StoreLostError, match="no response"):
        member.set("key", "value")
    assert not member.connected
    assert member.lost_at is not None


def test_a_store_that_is_slow_to_answer_is_given_more_time(
    port: int, host: GangStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when 2,048 pods connect at once: who gives up and connects again only adds to the store's work."""
    assert host.connected
    monkeypatch.setattr(store_module, "_CONNECT_ATTEMPT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as slow:

        def relay() -> None:
            while True:
                pod, _ = slow.accept()
                threading.Thread(target=answer, args=(pod,), daemon=True).start()

        def answer(pod: socket.socket) -> None:
            with contextlib.suppress(OSError), socket.create_connection(("localhost", port)) as store:
                threading.Event().wait(0.5)
                threading.Thread(target=copy, args=(pod, store), daemon=True).start()
                copy(store, pod)

        def copy(source: socket.socket, target: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(1 << 16):
                    target.sendall(data)

        threading.Thread(target=relay, daemon=True).start()
        member = connect(GangStore("127.0.0.1", slow.getsockname()[1], host=False, token=TOKEN))
        assert member.state().generation == 1


CROWD = """
import resource, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 256))
from megatron_trainer.rendezvous.store import GangStore
port = int(sys.argv[1])
stores = [GangStore("localhost", port, host=number == 0) for number in range(64)]
for store in stores:
    store.connect(time.monotonic() + 10, lambda: False)
print(sum(store.state().generation for store in stores))
"""


def test_a_soft_limit_of_open_files_does_not_limit_the_gang(port: int) -> None:
    """A process of its own: the limit holds for all that a process opens."""
    crowd = subprocess.run(
        [sys.executable, "-c", CROWD, str(port)], capture_output=True, text=True, timeout=60, check=False
    )
    assert crowd.stdout.strip() == "64", crowd.stderr[-2000:]
