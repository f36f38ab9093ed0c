"""Messages between a pod and the gang's store, which both ends prove to know the run's token for.

The store sends a nonce; the pod's first message is a nonce of its own and its proof; the store answers with
its proof. Every later message carries a code made with a key of this connection, its direction and its
number, so that none can be forged, repeated or moved to another connection. Nothing is encrypted. Imports no
torch.
"""

import hashlib
import hmac
import json
import secrets
from typing import Any, Final

from megatron_trainer.errors import TrainerError

NONCE_BYTES: Final = 16
PROOF_BYTES: Final = 32
LENGTH_BYTES: Final = 4
LONGEST_MESSAGE: Final = 16 << 20
"""Bytes. A pod sends some KiB; what all pods share is read in pages (store_server.PAGE)."""


class ForgedMessageError(TrainerError):
    """The other end does not know the run's token, or somebody changed a message."""


def new_nonce() -> bytes:
    """Return random bytes that are used once."""
    return secrets.token_bytes(NONCE_BYTES)


def _code(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"\0".join(parts), hashlib.sha256)


class Channel:
    """One end of a connection. `host`: the store's end. An empty token authenticates nobody."""

    def __init__(self, token: bytes, store_nonce: bytes, pod_nonce: bytes, *, host: bool) -> None:
        nonces = store_nonce + pod_nonce
        self._key = _code(token, b"connection", nonces)
        proofs = _code(token, b"pod", nonces), _code(token, b"store", nonces)
        directions = (b"to-store", b"to-pod")
        self.proof, self._expected = proofs[::-1] if host else proofs
        """What this end sends to prove that it knows the token."""
        self._sends, self._receives = directions[::-1] if host else directions
        self._sent = self._received = 0

    def check_proof(self, proof: bytes) -> None:
        """Raise ForgedMessageError unless the other end knows the token."""
        if not hmac.compare_digest(proof, self._expected):
            raise ForgedMessageError("it does not know the token of this run")

    def seal(self, text: bytes) -> bytes:
        """Return a message as it is sent: length of the text, code, text."""
        code = _code(self._key, self._sends, str(self._sent).encode(), text)
        self._sent += 1
        return len(text).to_bytes(LENGTH_BYTES) + code + text

    def unseal(self, code: bytes, text: bytes) -> dict[str, Any]:
        """Return the next message that was received. Raises ForgedMessageError."""
        expected = _code(self._key, self._receives, str(self._received).encode(), text)
        if not hmac.compare_digest(code, expected):
            raise ForgedMessageError("a message was changed on its way")
        self._received += 1
        return dict(json.loads(text))


def encode(message: dict[str, Any]) -> bytes:
    """Return the text of a message, which is the same on all connections."""
    return json.dumps(message, separators=(",", ":")).encode()


def message_length(header: bytes) -> int:
    """Return the length of the text that a header announces. Raises ForgedMessageError."""
    length = int.from_bytes(header)
    if length > LONGEST_MESSAGE:
        raise ForgedMessageError(f"a message announces {length} bytes, more than {LONGEST_MESSAGE}")
    return length
