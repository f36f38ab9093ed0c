"""Elects the leader among the operator's replicas with a Lease, as client-go does (decision record 0016)."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from megatron_operator.api.errors import OperatorError, described
from megatron_operator.api.times import micro_timestamp
from megatron_operator.controller.api_client import ApiError
from megatron_operator.controller.api_resources import LEASES, Resource
from megatron_operator.controller.fence import Fence, monotonic
from megatron_operator.controller.settings import LeaseTimes
from megatron_operator.lifecycle.object_metadata import Object

log = logging.getLogger(__name__)

RELEASED_DURATION: Final = 1
"""Duration in seconds of a Lease without a holder; the API server demands one above 0."""


class LeaseApi(Protocol):
    """The part of ApiClient that an election needs."""

    @property
    def clock(self) -> Any:
        """Has `now()`, the time that is written into the Lease for its readers."""

    async def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """The object; None when it does not exist."""

    async def create(self, resource: Resource, body: Object) -> Object:
        """POST. Raises ApiError with status 409 when the object exists."""

    async def replace(self, resource: Resource, body: Object) -> Object:
        """PUT. Raises ApiError with status 409 unless the body has the current resourceVersion."""


class LeaseLostError(OperatorError):
    """Another operator has taken the Lease, or it could not be renewed in time."""


class LeaderElector:
    """One candidate. It opens the fence when it becomes the leader and with each renewal.

    No clock is compared with another machine's: how old a record is counts from when this process first saw
    it, and how long the own one lasts from before it was sent.
    """

    def __init__(
        self,
        api: LeaseApi,
        fence: Fence,
        *,
        namespace: str,
        name: str,
        identity: str,
        times: LeaseTimes,
        clock: Callable[[], float] = monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._fence = fence
        self._namespace, self._name = namespace, name
        self.identity = identity
        self._times = times
        self._clock = clock
        self._sleep = sleep
        self._lease: Object | None = None
        self._seen_at = -math.inf
        self._observed: str | None = None
        """The resourceVersion that was seen last, and `_seen_at` when it was first."""
        self.term = 0
        """`leaseTransitions` of the own leadership; each takeover increments it."""
        self.reached = False
        """Whether the Lease could be read at least once."""

    async def acquire(self) -> None:
        """Return once this process is the leader. Errors are logged and retried."""
        while True:
            try:
                async with asyncio.timeout(self._request_timeout):
                    wait = await self._try_acquire()
            except Exception as error:
                log.warning("leader election: %s", described(error))
                wait = self._times.retry_period
            if wait is None:
                log.info("%s is the leader, term %s", self.identity, self.term)
                return
            await self._sleep(wait)

    async def hold(self) -> LeaseLostError:
        """Renew the Lease until it is lost; returns the LeaseLostError that has the reason."""
        while True:
            await self._sleep(min(self._times.retry_period, max(self._fence.remaining, 0.0)))
            try:
                if self._fence.remaining <= 0:
                    raise LeaseLostError(f"not renewed for {self._times.renew_deadline} s")
                async with asyncio.timeout(min(self._request_timeout, self._fence.remaining)):
                    await self._renew()
            except LeaseLostError as error:
                self._fence.close()
                return error
            except Exception as error:
                log.warning("lease not renewed, %.1f s left: %s", self._fence.remaining, described(error))

    async def release(self) -> None:
        """Give the Lease up, so that another candidate need not wait for its expiry; errors are logged."""
        held = self._fence.remaining > 0
        self._fence.close()
        if not held or self._lease is None:
            return
        changes = {"holderIdentity": "", "leaseDurationSeconds": RELEASED_DURATION}
        try:
            async with asyncio.timeout(self._request_timeout):
                await self._write(changes)
            log.info("lease released")
        except Exception as error:
            log.warning("lease not released, it expires: %s", described(error))

    @property
    def _request_timeout(self) -> float:
        """Seconds for one request, so that a second one fits before the renew deadline."""
        return self._times.renew_deadline / 2

    async def _try_acquire(self) -> float | None:
        """None when acquired, else the seconds until the next attempt."""
        lease = await self._api.get(LEASES, self._namespace, self._name)
        self.reached = True
        self._observe(lease)
        if (left := self._expires_in(lease)) > 0:
            return min(left, self._times.retry_period)
        try:
            await self._take(lease)
        except ApiError as error:
            if error.conflict:
                return 0.0
            raise
        return None

    def _observe(self, lease: Object | None) -> None:
        version = None if lease is None else str(lease["metadata"]["resourceVersion"])
        if version != self._observed:
            self._observed, self._seen_at = version, self._clock()

    def _expires_in(self, lease: Object | None) -> float:
        """Seconds until another holder's Lease has expired; 0 or less when it may be taken."""
        spec = (lease or {}).get("spec") or {}
        if spec.get("holderIdentity") in (None, "", self.identity):
            return 0.0
        duration = spec.get("leaseDurationSeconds") or self._times.lease_duration
        return self._seen_at + max(duration, self._times.lease_duration) - self._clock()

    async def _take(self, lease: Object | None) -> None:
        if lease is None:
            lease = {"metadata": {"name": self._name, "namespace": self._namespace}, "spec": {}}
        term = int((lease.get("spec") or {}).get("leaseTransitions") or 0) + 1
        body = self._changed(lease, {"leaseTransitions": term, "acquireTime": self._now()})
        sent = self._clock()
        new = "resourceVersion" not in lease["metadata"]
        self._lease = await (self._api.create if new else self._api.replace)(LEASES, body)
        self.term = term
        self._fence.open(sent + self._times.renew_deadline)

    async def _renew(self) -> None:
        sent = await self._write({})
        self._fence.open(sent + self._times.renew_deadline)

    async def _write(self, changes: Object) -> float:
        """Write the own Lease; returns the time at which it was sent. Raises LeaseLostError.

        A conflict may be due to an earlier write whose answer was lost.
        """
        assert self._lease is not None, "written after it was acquired"
        sent = self._clock()
        try:
            self._lease = await self._api.replace(LEASES, self._changed(self._lease, changes))
        except ApiError as error:
            if not (error.conflict or error.not_found):
                raise
            self._lease = await self._api.get(LEASES, self._namespace, self._name)
            if self._lease is None:
                raise LeaseLostError("the Lease was deleted") from None
            if (holder := self._lease["spec"].get("holderIdentity")) != self.identity:
                raise LeaseLostError(f"it is held by {holder or 'nobody'}") from None
            sent = self._clock()
            self._lease = await self._api.replace(LEASES, self._changed(self._lease, changes))
        return sent

    def _changed(self, lease: Object, changes: Object) -> Object:
        """The Lease as this process holds it from now on."""
        own = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self._times.lease_duration,
            "renewTime": self._now(),
        }
        return lease | {"spec": (lease.get("spec") or {}) | own | changes}

    def _now(self) -> str:
        return micro_timestamp(self._api.clock.now())
