"""The validating webhook: `kubectl apply` reports what the status would report, from the same stages.

It is optional: without it, or while it is unavailable, recipes are accepted and the condition Planned has the
same message.
"""

import asyncio
import contextlib
import logging
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from megatron_operator.api.errors import InvalidRecipeError, PlanningLimitError, described
from megatron_operator.controller.api_client import EXPECTED_ERRORS
from megatron_operator.controller.config_source import ConfigSource
from megatron_operator.controller.plan_worker import PlanWorker
from megatron_operator.controller.settings import Settings
from megatron_operator.lifecycle.review import Verdict, leaves_plan_unchanged, review

log = logging.getLogger(__name__)

PATH: Final = "/validate"
CERTIFICATE, KEY = "tls.crt", "tls.key"
CERTIFICATES_INTERVAL: Final = 30.0
"""Seconds between two checks of the certificate files: cert-manager renews them, the kubelet swaps them."""
LARGEST_REVIEW: Final = 8 * 2**20
"""Bytes of the largest review that is read."""
REVIEW_SECONDS: Final = 4.0
"""Wall time for one review of which the API server does not name its patience."""
MARGIN: Final = 1.0
"""Seconds before the end of its patience at which a review is answered, planned or not."""
UNPROCESSABLE: Final = 422
"""HTTP status code of a refused object, as of one that the API server's schema refuses."""
RESULT_LATER: Final = "the condition Planned will have the result"
"""End of a warning that a recipe was not planned."""


def review_seconds(query: Mapping[str, str]) -> float:
    """Wall time for a review: the API server adds `timeout`, in whole seconds such as `5s`, to the URL."""
    found = re.fullmatch(r"([0-9]+)s", query.get("timeout", ""))
    return REVIEW_SECONDS if found is None else max(MARGIN / 2, int(found[1]) - MARGIN)


def admission_review(uid: str, verdict: Verdict) -> dict[str, Any]:
    """The AdmissionReview that responds to the request with this UID."""
    response: dict[str, Any] = {"uid": uid, "allowed": not verdict.errors}
    if verdict.warnings:
        response["warnings"] = list(verdict.warnings)
    if verdict.errors:
        message = "\n".join(map(str, verdict.errors))
        response["status"] = {"code": UNPROCESSABLE, "reason": "Invalid", "message": message}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


class Webhook:
    """The HTTPS server; it reloads its certificate when the files change."""

    def __init__(self, config: ConfigSource, worker: PlanWorker, settings: Settings) -> None:
        self._config = config
        self._worker = worker
        self._settings = settings
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_2
        self.listening = False
        """Whether it takes reviews."""

    async def run(self) -> None:
        """Serve until cancelled. Raises OSError without a certificate or when the port is in use."""
        loaded = self._load()
        with contextlib.suppress(TimeoutError):
            # Starts the process before the first review needs it.
            await self._worker.call(Verdict)
        application = web.Application(client_max_size=LARGEST_REVIEW)
        application.router.add_post(PATH, self._validate)
        runner = web.AppRunner(application)
        await runner.setup()
        try:
            await web.TCPSite(runner, port=self._settings.webhook_port, ssl_context=self._tls).start()
            self.listening = True
            log.info("the validating webhook listens on port %s", self._settings.webhook_port)
            while True:
                await asyncio.sleep(CERTIFICATES_INTERVAL)
                if self._modified() != loaded:
                    loaded = self._load()
        finally:
            await runner.cleanup()

    def _files(self) -> tuple[Path, Path]:
        folder = Path(self._settings.webhook_certificates)
        return folder / CERTIFICATE, folder / KEY

    def _modified(self) -> tuple[int, ...]:
        return tuple(file.stat().st_mtime_ns for file in self._files())

    def _load(self) -> tuple[int, ...]:
        modified = self._modified()
        self._tls.load_cert_chain(*self._files())
        return modified

    async def _validate(self, http: web.Request) -> web.Response:
        try:
            request = (await http.json())["request"]
            uid = request["uid"]
        except (ValueError, TypeError, KeyError):
            return web.Response(status=400, text="expected an AdmissionReview")
        verdict = await self._verdict(request, review_seconds(http.query))
        return web.json_response(admission_review(uid, verdict))

    async def _verdict(self, request: Mapping[str, Any], limit: float) -> Verdict:
        if not self._settings.serves(request["namespace"]):
            return Verdict()
        # Before the configuration is read: a run can be stopped also while it cannot be.
        if leaves_plan_unchanged(request):
            return Verdict()
        try:
            async with asyncio.timeout(limit):
                return await self._review(request)
        except TimeoutError:
            return Verdict(warnings=(f"not planned in time; {RESULT_LATER}",))

    async def _review(self, request: Mapping[str, Any]) -> Verdict:
        """The verdict of the planner; only a warning where the platform is not known."""
        try:
            config = await self._config.read()
        except InvalidRecipeError as error:
            # Not the user's fault: the recipe waits until the platform file is fixed.
            return Verdict(warnings=tuple(map(str, error.errors)))
        except EXPECTED_ERRORS as error:
            return Verdict(warnings=(f"not planned: {described(error)}; {RESULT_LATER}",))
        try:
            verdict: Verdict = await self._worker.call(
                review, request, config=config, namespace=request["namespace"]
            )
        except PlanningLimitError as error:
            return Verdict(tuple(error.errors))
        return verdict
