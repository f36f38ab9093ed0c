"""Tokens of requests: in the header Authorization, or in a cookie that the sign-in form sets."""

from typing import Final
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from megatron_operator.api.errors import OperatorError
from megatron_operator.ui.access import Access, Viewer
from megatron_operator.ui.rendering import Templates

MAX_COOKIE: Final = 4000
"""Bytes of a token in a cookie; browsers store 4096 with its name and attributes."""
_MAX_FORM: Final = 32 << 10


class SignInRequiredError(OperatorError):
    """The request has no valid token. The text is for the person."""


class SignIn:
    """Identifies the viewer of a request, and lets people sign in with a token."""

    def __init__(
        self, access: Access, templates: Templates, cookie: str, key_in_url: bool, secure: bool
    ) -> None:
        self._access = access
        self._templates = templates
        self._cookie = cookie
        self._key_in_url = key_in_url
        self._secure = secure

    async def viewer(self, request: Request) -> Viewer:
        """Who sent a request. Raises SignInRequiredError."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            token = request.cookies.get(self._cookie, "")
        if not token.strip():
            raise SignInRequiredError("")
        viewer = await self._access.viewer(token.strip())
        if viewer is None:
            raise SignInRequiredError("The API server does not accept this token; it may have expired.")
        return viewer

    def form(self, request: Request, status: int = 200, problem: str = "") -> Response:
        """The form for a token; afterwards the browser goes to the page of the request."""
        path = request.url.path
        query = f"?{request.url.query}" if request.url.query else ""
        wanted = "/" if path.startswith("/sign-") else path + query
        response = self._templates.response(
            "sign_in.html", status, problem=problem, wanted=wanted, with_key=self._key_in_url
        )
        if status == 401:
            response.headers["WWW-Authenticate"] = "Bearer"
        return response

    async def get(self, request: Request) -> Response:
        """The form; on a person's own machine also the link that the shell has printed."""
        key = request.query_params.get("key", "") if self._key_in_url else ""
        return await self._enter(request, key, "/") if key else self.form(request)

    async def post(self, request: Request) -> Response:
        """The form with a token. Raises HTTPException for that of another site, and one that is too large."""
        if request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
            raise HTTPException(403, "the form of another site cannot sign in here")
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MAX_FORM:
                raise HTTPException(413, "the form is too large")
        fields = parse_qs(body.decode(errors="replace"))
        wanted = fields.get("wanted", ["/"])[0]
        token = "".join(fields.get("token", [""])[0].split())
        return await self._enter(request, token, wanted)

    async def leave(self, _request: Request) -> Response:
        """Forget the token."""
        response = RedirectResponse("/sign-in", 303)
        response.delete_cookie(self._cookie, secure=self._secure, httponly=True, samesite="lax")
        return response

    async def _enter(self, request: Request, token: str, wanted: str) -> Response:
        if len(token) > MAX_COOKIE:
            text = f"The token has {len(token)} bytes, a cookie at most {MAX_COOKIE}; send it as a header."
            return self.form(request, 401, text)
        if not token or not token.isascii() or await self._access.viewer(token) is None:
            return self.form(request, 401, "This token is not accepted; it may have expired.")
        # Only a path of this page: `//host` and `/\host` are other sites to a browser.
        inside = wanted.startswith("/") and wanted[1:2] not in ("/", "\\") and wanted.isprintable()
        response = RedirectResponse(wanted if inside else "/", 303)
        response.set_cookie(self._cookie, token, secure=self._secure, httponly=True, samesite="lax")
        return response
