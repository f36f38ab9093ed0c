"""The server of the gang's store, on a thread of the Master pod's launcher. Imports no torch.

Keys are paths. What every pod must know at once (SHARED) is sent to all of them whenever it changes, and a
pod that waits for others is answered when the last of them is there, so that nobody has to ask repeatedly.
"""

import asyncio
import resource
import socket
import threading
from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from megatron_trainer.listening import listen
from megatron_trainer.rendezvous.store_channel import (
    LENGTH_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    Channel,
    ForgedMessageError,
    encode,
    message_length,
    new_nonce,
)

SHARED: Final = ("state", "plan", "progress", "run")
"""First parts of the keys that every pod has a copy of."""
HANDSHAKE_SECONDS: Final = 5.0
MAX_STRANGERS: Final = 2048
"""Connections at once that have not proven to know the token; for one more, the oldest ends. A large gang
connects at once, so fewer would end its own."""
BACKLOG: Final = 4096
"""Connections that the kernel holds until they are accepted."""
ACCEPTED_AT_ONCE: Final = 64
"""Between two turns of the event loop: it must also end the connections that were given up meanwhile, or the
process runs out of files."""
STRANGERS_BYTES: Final = 4096
"""Twice this is read ahead from a connection."""
LONGEST_BACKLOG: Final = 32 << 20
"""Bytes that may wait for a pod that does not read; then its connection ends."""
PAGE: Final = 1 << 20
"""Characters of the values in one answer, each of at most 12 bytes in JSON. What a large gang shares would be
longer than LONGEST_MESSAGE, and the other pods would wait while it is encoded."""


def is_shared(key: str) -> bool:
    """Whether every pod has a copy of the key."""
    return key.partition("/")[0] in SHARED


class Values:
    """Keys and values. A key `a/b` is a child of `a`."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._children: dict[str, dict[str, str]] = {}

    def get(self, key: str) -> str | None:
        """Return the value of `key`, None if it is not set."""
        return self._values.get(key)

    def set(self, key: str, value: str) -> None:
        """Set `key`."""
        parent, _, name = key.rpartition("/")
        self._values[key] = value
        self._children.setdefault(parent, {})[name] = value

    def children(self, parent: str) -> dict[str, str]:
        """Return the values of the children by the last part of their key."""
        return self._children.get(parent, {})

    def page(self, parent: str, start: int) -> tuple[dict[str, str], bool]:
        """Return the values of children from number `start` on that fit on a page, and whether more follow.

        At least one is returned, however long it is. A child keeps its number.
        """
        found: dict[str, str] = {}
        size = 0
        for name, value in islice(self.children(parent).items(), start, None):
            size += len(value)
            if found and size > PAGE:
                return found, True
            found[name] = value
        return found, False

    def shared(self) -> dict[str, str]:
        """Return what every pod has a copy of."""
        return {key: value for key, value in self._values.items() if is_shared(key)}


class _Connection:
    """A pod that has proven to know the token."""

    def __init__(self, channel: Channel, writer: asyncio.StreamWriter) -> None:
        self._channel = channel
        self._writer = writer

    def send(self, text: bytes) -> None:
        """Send the text of a message."""
        transport = self._writer.transport
        if transport.is_closing():
            return
        if transport.get_write_buffer_size() > LONGEST_BACKLOG:
            transport.abort()
            return
        self._writer.write(self._channel.seal(text))


class StoreServer:
    """Serves a store on all addresses of this pod from its creation to the end of the process."""

    def __init__(self, port: int, token: bytes, initial: dict[str, str]) -> None:
        """Raises OSError if the port cannot be used."""
        self._token = token
        self._values = Values()
        for key, value in initial.items():
            self._values.set(key, value)
        self._strangers: dict[asyncio.StreamWriter, None] = {}
        self._connections: set[_Connection] = set()
        self._waiting: dict[str, list[tuple[int, _Connection, int]]] = {}
        self._operations: dict[str, Callable[[_Connection, dict[str, Any]], Any]] = {
            "set": lambda _, request: self._set(request["values"]),
            "get": lambda _, request: self._values.get(request["key"]),
            "children": lambda _, request: self._values.page(request["parent"], request["start"]),
            "swap": self._swap,
        }
        listener = listen(port, BACKLOG)
        _raise_file_limit()
        run = threading.Thread(
            target=lambda: asyncio.run(self._run(listener)), daemon=True, name="gang-store"
        )
        run.start()

    async def _run(self, listener: socket.socket) -> None:
        server = await asyncio.start_server(
            self._serve, sock=listener, backlog=ACCEPTED_AT_ONCE, limit=STRANGERS_BYTES
        )
        # asyncio has one number for both: the kernel's queue is to hold a whole gang.
        listener.listen(BACKLOG)
        await server.serve_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = None
        try:
            channel = await self._meet(reader, writer)
            connection = _Connection(channel, writer)
            connection.send(encode({"values": self._values.shared()}))
            self._connections.add(connection)
            while True:
                length = message_length(await reader.readexactly(LENGTH_BYTES))
                code = await reader.readexactly(PROOF_BYTES)
                self._answer(connection, channel.unseal(code, await reader.readexactly(length)))
        except (OSError, EOFError, TimeoutError, ForgedMessageError, ValueError, KeyError, TypeError):
            # The pod is gone, or it is none of this run's.
            return
        finally:
            if connection is not None:
                self._forget(connection)
            writer.transport.abort()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Channel:
        """Wait for the proof that the peer knows the token, and answer with ours."""
        self._strangers[writer] = None
        if len(self._strangers) > MAX_STRANGERS:
            next(iter(self._strangers)).transport.abort()
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                nonce = new_nonce()
                writer.write(nonce)
                first = await reader.readexactly(NONCE_BYTES + PROOF_BYTES)
        finally:
            del self._strangers[writer]
        channel = Channel(self._token, nonce, first[:NONCE_BYTES], host=True)
        channel.check_proof(first[NONCE_BYTES:])
        # The connection of a pod whose node is gone ends at last.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        writer.write(channel.proof)
        return channel

    def _answer(self, connection: _Connection, request: dict[str, Any]) -> None:
        if request["op"] == "wait":
            self._wait(connection, request["id"], request["parent"], request["count"])
            return
        value = self._operations[request["op"]](connection, request)
        connection.send(encode({"id": request["id"], "value": value}))

    def _set(self, values: dict[str, str]) -> None:
        for key, value in values.items():
            self._values.set(key, value)
            self._wake(key.rpartition("/")[0])
        shared = {key: value for key, value in values.items() if is_shared(key)}
        if shared:
            text = encode({"values": shared})
            for connection in list(self._connections):
                connection.send(text)

    def _swap(self, _: _Connection, request: dict[str, Any]) -> str:
        key, value = request["key"], request["value"]
        if self._values.get(key) == request["expected"]:
            self._set({key: value})
        return self._values.get(key) or ""

    def _wait(self, connection: _Connection, number: int, parent: str, count: int) -> None:
        self._waiting.setdefault(parent, []).append((count, connection, number))
        self._wake(parent)

    def _wake(self, parent: str) -> None:
        """Answer those that wait for as many children as there are now."""
        if not (waiting := self._waiting.get(parent)):
            return
        there = len(self._values.children(parent))
        self._waiting[parent] = [each for each in waiting if each[0] > there]
        for count, connection, number in waiting:
            if count <= there:
                connection.send(encode({"id": number, "value": there}))

    def _forget(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        for parent, waiting in self._waiting.items():
            self._waiting[parent] = [each for each in waiting if each[1] is not connection]


def _raise_file_limit() -> None:
    """Allow one connection per pod: container runtimes start processes with a soft limit of 1024 files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
