"""A Hugging Face hub over HTTP on the loopback device, as far as the library's downloads ask it.

Weights are redirected to a second path, as the hub does to its content delivery network. What the real hub
answers was taken from the code of huggingface_hub 2.4.0, which names the headers that it reads.
"""

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
BLOCK = 64 << 10


@dataclass
class HostedModel:
    """A model of the stand-in: the files of a folder, at the branch `main`."""

    folder: Path
    commit: str = COMMIT
    token: str | None = None
    """The token that a gated model asks for."""

    def files(self) -> dict[str, Path]:
        """Path by name in the model."""
        return {str(file.relative_to(self.folder)): file for file in self.folder.rglob("*") if file.is_file()}


@dataclass
class Request:
    """A request that was answered."""

    method: str
    path: str
    token: str | None
    first_byte: int = 0


@dataclass
class HubStandIn:
    """Serves models by name; its fields may be changed while it runs."""

    models: dict[str, HostedModel] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    stop_in: str | None = None
    """File of which only the first half is sent."""
    stopped: threading.Event = field(default_factory=threading.Event)
    """Set once that half is sent."""
    status: int | None = None
    """Answer to everything, as of a hub that fails."""
    url: str = ""

    @contextmanager
    def running(self) -> Iterator["HubStandIn"]:
        """Serve for the duration of a block."""
        hub = self

        class Handler(_Handler):
            stand_in = hub

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        self.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.stop_in = None
            server.shutdown()
            server.server_close()
            thread.join()

    def downloads(self, name: str) -> list[int]:
        """The first byte of each request for the content of a file."""
        return [r.first_byte for r in self.requests if r.method == "GET" and r.path.endswith(f"/{name}")]


class _Handler(BaseHTTPRequestHandler):
    stand_in: HubStandIn
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        first = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
        self.stand_in.requests.append(Request(self.command, path, token, first))
        words = path.strip("/").split("/")
        if self.stand_in.status is not None:
            self._send(self.stand_in.status, b"")
        elif words[0] == "api":
            self._describe(words[2:4], words[4], "/".join(words[5:]), token)
        elif words[0] == "cdn":
            self._content("/".join(words[1:3]), "/".join(words[3:]), first)
        else:
            self._resolve(words[:2], words[3], "/".join(words[4:]), token)

    def _model(self, owner_and_name: list[str], revision: str, token: str | None) -> HostedModel | None:
        """The model that the request may read; None where an error was sent instead."""
        model = self.stand_in.models.get("/".join(owner_and_name))
        if model is None:
            self._refuse(404 if token else 401, "RepoNotFound", "Repository not found")
        elif model.token is not None and token not in (None, model.token):
            self._refuse(401, None, "Invalid credentials in Authorization header")
        elif model.token is not None and token is None:
            self._refuse(401, "GatedRepo", "Access to this model is restricted")
        elif revision not in ("main", model.commit):
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            return model
        return None

    def _describe(self, owner_and_name: list[str], kind: str, revision: str, token: str | None) -> None:
        model = self._model(owner_and_name, revision, token)
        if model is None:
            return
        files = sorted(model.files().items())
        if kind == "tree":
            body: Any = [
                {"type": "file", "path": name, "size": file.stat().st_size, "oid": _sha(file)[:40]}
                for name, file in files
            ]
        else:
            siblings = [{"rfilename": name, "size": file.stat().st_size} for name, file in files]
            body = {"id": "/".join(owner_and_name), "sha": model.commit, "siblings": siblings}
        self._send(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _resolve(self, owner_and_name: list[str], revision: str, name: str, token: str | None) -> None:
        model = self._model(owner_and_name, revision, token)
        file = model.files().get(name) if model else None
        if model is None or file is None:
            if model is not None:
                self._refuse(404, "EntryNotFound", "Entry not found")
            return
        headers = {"X-Repo-Commit": model.commit, "ETag": f'"{_sha(file)}"'}
        if not name.endswith(".safetensors"):
            self._send(200, file.read_bytes(), headers)
            return
        headers |= {"X-Linked-Etag": headers["ETag"], "X-Linked-Size": str(file.stat().st_size)}
        # Of another host, as the library distinguishes the two.
        network = self.stand_in.url.replace("127.0.0.1", "localhost")
        location = f"{network}/cdn/{'/'.join(owner_and_name)}/{name}"
        self._send(302, b"", headers | {"Location": location})

    def _content(self, model: str, name: str, first: int) -> None:
        body = self.stand_in.models[model].files()[name].read_bytes()
        headers = {"ETag": '"cdn"', "Accept-Ranges": "bytes"}
        if first:
            headers["Content-Range"] = f"bytes {first}-{len(body) - 1}/{len(body)}"
        if self.stand_in.stop_in == name:
            self._send_half(body[first:])
        else:
            self._send(206 if first else 200, body[first:], headers)

    def _send_half(self, body: bytes) -> None:
        """Send half of a body, and then nothing until the client has gone."""
        self._begin(200, len(body), {})
        self.wfile.write(body[: len(body) // 2])
        self.wfile.flush()
        self.stand_in.stopped.set()
        with contextlib.suppress(ConnectionError):
            self.rfile.read(1)
        self.close_connection = True

    def _refuse(self, status: int, code: str | None, message: str) -> None:
        headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
        self._send(status, json.dumps({"error": message}).encode(), headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self._begin(status, len(body), headers or {})
        if self.command == "GET":
            self.wfile.write(body)

    def _begin(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()


def _sha(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
