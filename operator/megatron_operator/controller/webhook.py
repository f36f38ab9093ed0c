"""The validating webhook: says at `kubectl apply` what the status would say, by the same stages.

It only ever saves a look at the status: without it, or while it is away, recipes are accepted and the
condition Planned has the same words.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.controller.config_source import Known, Sources
from megatron_operator.controller.settings import Settings
from megatron_operator.lifecycle.desired import incompatible, want
from megatron_operator.lifecycle.status_builder import Draft
from megatron_operator.planner import warnings_of

log = logging.getLogger(__name__)

PATH: Final = "/validate"
CERTIFICATE, KEY = "tls.crt", "tls.key"
CERTIFICATES_INTERVAL: Final = 30.0
"""Seconds between two looks at the certificate's files: cert-manager renews them, the kubelet swaps them."""
LARGEST_REVIEW: Final = 8 * 2**20
UNPROCESSABLE: Final = 422


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the API server may take a recipe; why not, or what its user should know."""

    errors: tuple[FieldError, ...] = ()
    warnings: tuple[str, ...] = ()


def judge(request: Mapping[str, Any], known: Known) -> Verdict:
    """The verdict on an AdmissionRequest's object, in the words of `megatron validate`."""
    body = dict(request["object"])
    if _changes_nothing_that_is_planned(request):
        return Verdict()
    metadata = {"uid": "", "generation": 1, "namespace": request["namespace"]} | body["metadata"]
    draft = Draft.of(body | {"metadata": metadata}, time.time())
    try:
        wanted = want(draft, known)
    except InvalidRecipeError as refused:
        return Verdict(tuple(refused.errors))
    return Verdict(tuple(incompatible(draft, wanted)), tuple(warnings_of(wanted.resolved, wanted.plan)))


def _changes_nothing_that_is_planned(request: Mapping[str, Any]) -> bool:
    """Labels, finalizers and `suspend` always pass: a run can be let go of even when it is refused by now."""
    if request["object"]["metadata"].get("deletionTimestamp"):
        return True
    if request.get("operation") != "UPDATE":
        return False
    before, after = (dict((request[which] or {}).get("spec") or {}) for which in ("oldObject", "object"))
    return {**before, "suspend": None} == {**after, "suspend": None}


def response(uid: str, verdict: Verdict) -> dict[str, Any]:
    """An AdmissionReview with the verdict."""
    answer: dict[str, Any] = {"uid": uid, "allowed": not verdict.errors}
    if verdict.warnings:
        answer["warnings"] = list(verdict.warnings)
    if verdict.errors:
        message = "\n".join(map(str, verdict.errors))
        answer["status"] = {"code": UNPROCESSABLE, "reason": "Invalid", "message": message}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}


class Webhook:
    """The server; its certificate is read anew when its files change."""

    def __init__(self, sources: Sources, settings: Settings) -> None:
        self._sources = sources
        self._settings = settings
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_2

    async def run(self) -> None:
        """Serve until cancelled. Raises OSError without a certificate or when the port is taken."""
        loaded = self._load()
        application = web.Application(client_max_size=LARGEST_REVIEW)
        application.router.add_post(PATH, self._validate)
        runner = web.AppRunner(application)
        await runner.setup()
        try:
            await web.TCPSite(runner, port=self._settings.webhook_port, ssl_context=self._tls).start()
            log.info("the validating webhook listens on port %s", self._settings.webhook_port)
            while True:
                await asyncio.sleep(CERTIFICATES_INTERVAL)
                if self._written() != loaded:
                    loaded = self._load()
        finally:
            await runner.cleanup()

    def _files(self) -> tuple[Path, Path]:
        folder = Path(self._settings.webhook_certificates)
        return folder / CERTIFICATE, folder / KEY

    def _written(self) -> tuple[int, ...]:
        return tuple(file.stat().st_mtime_ns for file in self._files())

    def _load(self) -> tuple[int, ...]:
        written = self._written()
        self._tls.load_cert_chain(*self._files())
        return written

    async def _validate(self, http: web.Request) -> web.Response:
        try:
            request = (await http.json())["request"]
            uid = request["uid"]
        except (ValueError, TypeError, KeyError):
            return web.Response(status=400, text="an AdmissionReview was expected")
        return web.json_response(response(uid, await self._verdict(request)))

    async def _verdict(self, request: Mapping[str, Any]) -> Verdict:
        if not self._settings.serves(request["namespace"]):
            return Verdict()
        try:
            known = await self._sources.known()
        except InvalidRecipeError as refused:
            # Not the user's fault: the recipe waits until the platform file is mended.
            return Verdict(warnings=tuple(map(str, refused.errors)))
        return await asyncio.to_thread(judge, request, known)
