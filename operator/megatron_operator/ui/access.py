"""Who may see what: by the cluster's own authentication, or by a key on a person's own machine."""

import asyncio
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from megatron_operator.api.labels import GROUP, PLURAL
from megatron_operator.sdk.connection import AsyncConnection

REMEMBERED: Final = 10.0
"""Seconds for which an answer of the API server is used again: a page has several requests."""
MAX_REMEMBERED: Final = 4096
"""Answers that are kept at most."""
MAX_TOKEN: Final = 16 << 10
"""Length of the longest token that is sent to the API server."""
_CONCURRENT: Final = 8
"""Reviews that are under way at most, so that requests with invalid tokens do not load the API server."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who opens the page, as the API server has identified them."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Right:
    """What a viewer wants to read."""

    verb: str
    resource: str
    namespace: str | None
    """None for all namespaces."""
    name: str = ""
    group: str = ""
    subresource: str = ""


def see_runs(namespace: str | None) -> Right:
    """To list the recipes of a namespace, or of all."""
    return Right("list", PLURAL, namespace, group=GROUP)


def see_run(namespace: str, name: str) -> Right:
    """To get one recipe."""
    return Right("get", PLURAL, namespace, name, group=GROUP)


def see_pods(namespace: str) -> Right:
    """To list pods, which the nodes of ranks come from."""
    return Right("list", "pods", namespace)


def see_logs(namespace: str) -> Right:
    """To read logs, which the points of charts and the text of a failure come from."""
    return Right("get", "pods", namespace, subresource="log")


class Access(Protocol):
    """Identifies viewers and decides what they may read."""

    async def viewer(self, token: str) -> Viewer | None:
        """Who has this token; None where it is not valid. Raises ApiError, ClusterUnreachableError."""

    async def allows(self, viewer: Viewer, right: Right) -> bool:
        """Whether a viewer may read this. Raises ApiError, ClusterUnreachableError."""


class KeyAccess:
    """One key, which the shell that started the page has printed; rights are those of its kubeconfig."""

    def __init__(self, key: str, name: str = "the user of this kubeconfig") -> None:
        """`name` is what the page calls the person."""
        self._key = key
        self._name = name

    async def viewer(self, token: str) -> Viewer | None:
        """The person at the shell."""
        matches = hmac.compare_digest(token.encode(), self._key.encode())
        return Viewer(self._name) if matches else None

    async def allows(self, viewer: Viewer, right: Right) -> bool:  # noqa: ARG002
        """Always: the API server restricts the kubeconfig itself."""
        return True


class ClusterAccess:
    """TokenReview and SubjectAccessReview of the API server.

    Answers are used for REMEMBERED seconds, so a token that was revoked works for no longer. Tokens are kept
    as digests only.
    """

    def __init__(self, connection: AsyncConnection, clock: Callable[[], float] = time.monotonic) -> None:
        self._connection = connection
        self._clock = clock
        self._remembered: dict[object, tuple[float, Any]] = {}
        self._slots = asyncio.Semaphore(_CONCURRENT)

    async def viewer(self, token: str) -> Viewer | None:
        """Who the API server takes the holder of a token for."""
        if len(token) > MAX_TOKEN:
            return None
        key = hashlib.sha256(token.encode(errors="surrogateescape")).digest()
        spec = {"token": token}
        return _viewer(await self._review(key, "authentication.k8s.io", "TokenReview", spec))

    async def allows(self, viewer: Viewer, right: Right) -> bool:
        """What the API server would decide for a request of the viewer's own."""
        attributes = {
            "verb": right.verb,
            "group": right.group,
            "resource": right.resource,
            "subresource": right.subresource,
            "namespace": right.namespace or "",
            "name": right.name,
        }
        spec = {
            "user": viewer.name,
            "uid": viewer.uid,
            "groups": list(viewer.groups),
            "extra": dict(viewer.extra),
            "resourceAttributes": {key: value for key, value in attributes.items() if value},
        }
        key = (viewer.name, viewer.uid, viewer.groups, repr(sorted(viewer.extra.items())), right)
        answer = await self._review(key, "authorization.k8s.io", "SubjectAccessReview", spec)
        return answer.get("allowed") is True and answer.get("denied") is not True

    async def _review(self, key: object, group: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
        now = self._clock()
        known = self._remembered.get(key)
        if known is not None and now < known[0]:
            return dict(known[1])
        async with self._slots, self._connection.client() as api:
            answer = await api.review(group, kind, spec)
        if len(self._remembered) >= MAX_REMEMBERED:
            self._remembered = {k: v for k, v in self._remembered.items() if now < v[0]}
        if len(self._remembered) >= MAX_REMEMBERED:
            self._remembered.clear()
        self._remembered[key] = (now + REMEMBERED, answer)
        return answer


def _viewer(status: dict[str, Any]) -> Viewer | None:
    user = status.get("user") or {}
    if status.get("authenticated") is not True or not user.get("username"):
        return None
    return Viewer(
        str(user["username"]),
        str(user.get("uid") or ""),
        tuple(user.get("groups") or ()),
        dict(user.get("extra") or {}),
    )
