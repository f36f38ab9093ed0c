"""The web application: routes, headers and errors. It changes nothing in the cluster."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from megatron_operator.controller.api_client import ApiError
from megatron_operator.sdk.errors import ClusterUnreachableError
from megatron_operator.ui.access import Access
from megatron_operator.ui.archive import Archive
from megatron_operator.ui.deleted_use import DeletedUse
from megatron_operator.ui.journal_pages import JournalPages
from megatron_operator.ui.journals import Journals
from megatron_operator.ui.pages import Pages
from megatron_operator.ui.published import PublishedRecipes
from megatron_operator.ui.rendering import FOLDER, Templates
from megatron_operator.ui.runs import NoRuns, Runs
from megatron_operator.ui.shown_runs import ShownRuns
from megatron_operator.ui.sign_in import SignIn, SignInRequiredError

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
Lifespan = Callable[[], AbstractAsyncContextManager[None]]


@dataclass(frozen=True, slots=True)
class Settings:
    """How the page is served."""

    runs: Runs | None
    """Of the cluster; None where only journals are shown."""
    access: Access
    published: PublishedRecipes
    archive: Archive | None = None
    """Where deleted runs are; None: they are not shown."""
    deleted_use: DeletedUse | None = None
    """What deleted runs have used; None: it is not known."""
    journals: Journals | None = None
    """Journals in checkpoint directories. Every viewer sees them all."""
    key_in_url: bool = False
    """Accept the token as `/sign-in?key=`: only for a key that this process made up."""
    secure_cookie: bool = True
    """Restrict the cookie to HTTPS, and to localhost, which browsers treat alike."""
    cookie: str = "megatron-ui"
    now: Callable[[], float] = time.time
    """Unix time in seconds."""


def application(settings: Settings, background: Lifespan | None = None) -> Starlette:
    """The application; `background` runs from its start to its end."""
    templates = Templates(
        cluster=settings.runs is not None,
        archive=settings.archive is not None,
        journals=settings.journals is not None,
    )
    sign_in = SignIn(settings.access, templates, settings.cookie, settings.key_in_url, settings.secure_cookie)
    shown = ShownRuns(
        settings.runs or NoRuns(), settings.access, settings.archive, settings.journals, settings.deleted_use
    )
    pages = Pages(shown, settings.published, templates, sign_in, settings.now)

    first, journal_routes = pages.runs, []
    if settings.journals is not None:
        journals = JournalPages(settings.journals, pages, sign_in, settings.now)
        journal_routes = [Route("/journals", journals.journals), Route("/journals/{uid}", journals.journal)]
        first = pages.runs if settings.runs is not None else journals.journals

    async def healthz(_request: Request) -> Response:
        return PlainTextResponse("ok")

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        if background is None:
            yield
        else:
            async with background():
                yield

    def failed(status: int, title: str) -> Callable[[Request, Any], Awaitable[Response]]:
        async def respond(_request: Request, error: Exception) -> Response:
            return templates.response("message.html", status, title=title, text=str(error))

        return respond

    async def refused(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        title = HTTPStatus(error.status_code).phrase
        return templates.response("message.html", error.status_code, title=title, text=error.detail)

    async def ask_to_sign_in(request: Request, error: Exception) -> Response:
        return sign_in.form(request, 401, str(error))

    return Starlette(
        routes=[
            Route("/", first),
            *journal_routes,
            Route("/runs/{namespace}/{name}", pages.run),
            Route("/runs/{namespace}/{name}/recipe", pages.recipe),
            Route("/compare", pages.compare),
            Route("/ledger", pages.ledger),
            Route("/archive", pages.archive),
            Route("/sign-in", sign_in.get, methods=["GET"]),
            Route("/sign-in", sign_in.post, methods=["POST"]),
            Route("/sign-out", sign_in.leave, methods=["POST"]),
            Route("/healthz", healthz),
            Mount("/static", StaticFiles(directory=FOLDER / "static")),
        ],
        middleware=[Middleware(_Headers)],
        exception_handlers={
            SignInRequiredError: ask_to_sign_in,
            HTTPException: refused,
            ApiError: failed(502, "The API server refused a request of this page"),
            ClusterUnreachableError: failed(503, "The cluster cannot be reached"),
        },
        lifespan=lifespan,
    )


class _Headers:
    """Adds HEADERS to every response, those of errors included."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(key.lower().encode(), value.encode()) for key, value in HEADERS.items()]
                names = {key for key, _ in own}
                given = [pair for pair in message["headers"] if pair[0].lower() not in names]
                message = {**message, "headers": [*given, *own]}
            await send(message)

        await self._app(scope, receive, with_headers if scope["type"] == "http" else send)
