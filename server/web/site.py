"""The HTTP server: who may look, and what there is to see.

Read-only and off by default. With a password it is that of the Redis side, by HTTP Basic; a user sees what
his patterns let him read. Without one only this machine gets an answer, and only under its own name: a page
of somebody else must not read it by way of a name server.
"""

from __future__ import annotations

import json
import ssl
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Awaitable, Callable
from importlib.resources import files
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aiohttp import web

from ..acl.user import DEFAULT
from . import exposition, overview

if TYPE_CHECKING:
    from ..acl.user import User
    from ..service import Service

NEEDED = "INFO"
"""Who may run this command may look."""
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Server": "pionkv",
}
STATIC = {
    "/": ("index.html", "text/html"),
    "/app.js": ("app.js", "text/javascript"),
    "/style.css": ("style.css", "text/css"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Site:
    """One HTTP port.

    Args:
        service: The server that is shown.
        page: Whether the page is served, or the metrics alone.
    """

    def __init__(self, service: Service, *, page: bool) -> None:
        self._service = service
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._health)
        if page:
            app.router.add_get("/api/overview", self._overview)
            app.router.add_get("/api/prefixes", self._prefixes)
            app.router.add_get("/api/misses", self._misses)
            for path, (name, kind) in STATIC.items():
                app.router.add_get(path, _static(name, kind))
        self._site: web.TCPSite | None = None
        self._address = ("", 0)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)

    async def start(self, host: str, port: int, context: ssl.SSLContext | None) -> int:
        """Listen, with TLS if there is a context; the real port. Raises `OSError`."""
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, host, port, ssl_context=context)
        await self._site.start()
        real: int = self._runner.addresses[0][1]
        self._address = host, real
        return real

    async def renew(self, context: ssl.SSLContext | None) -> None:
        """Listen with another certificate from now on. Raises `OSError`."""
        if self._site is None:
            return
        host, port = self._address
        await self._site.stop()
        self._site = web.TCPSite(self._runner, host, port, ssl_context=context)
        await self._site.start()

    async def stop(self) -> None:
        """Close the port and every connection."""
        await self._runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let a request in, or answer why not; whatever is answered carries the headers."""
        if request.path != "/healthz" and (refusal := self._refusal(request)) is not None:
            response: web.StreamResponse = refusal
        else:
            try:
                response = await handler(request)
            except web.HTTPException as error:
                response = web.Response(status=error.status, text=f"{error.reason}\n")
        response.headers.update(HEADERS)
        return response

    def _refusal(self, request: web.Request) -> web.Response | None:
        user = self._user(request)
        if user is None:
            challenge = {"WWW-Authenticate": 'Basic realm="pionkv", charset="UTF-8"'}
            return web.Response(status=401, text="a user name and a password are needed\n", headers=challenge)
        if user.needs_no_password and not self._is_local(request):
            return web.Response(status=403, text="without a password only this machine may look\n")
        if not user.may_run(NEEDED):
            return web.Response(status=403, text=f"user {user.name} may not run {NEEDED}\n")
        return None

    def _user(self, request: web.Request) -> User | None:
        users = self._service.users
        given = request.headers.get("Authorization", "")
        if not given:
            default = users.get(DEFAULT)
            return default if default is not None and default.needs_no_password else None
        kind, _, value = given.partition(" ")
        try:
            name, colon, password = b64decode(value, validate=True).decode().partition(":")
        except (NotBase64, UnicodeDecodeError):
            return None
        if kind.lower() != "basic" or not colon:
            return None
        return users.login(name or DEFAULT, password.encode())

    def _known_user(self, request: web.Request) -> User:
        """Whom the guard has let in."""
        user = self._user(request)
        if user is None:
            raise web.HTTPUnauthorized
        return user

    def _is_local(self, request: web.Request) -> bool:
        try:
            if not ip_address(request.remote or "").is_loopback:
                return False
            name = urlsplit(f"//{request.host}").hostname or ""
            return name == "localhost" or ip_address(name).is_loopback
        except ValueError:
            return False

    async def _metrics(self, request: web.Request) -> web.Response:
        body = exposition.exposition(self._service)
        return web.Response(body=body, headers={"Content-Type": exposition.CONTENT_TYPE_LATEST})

    async def _health(self, request: web.Request) -> web.Response:
        self._service.store.info()
        return web.Response(text="ok\n")

    async def _overview(self, request: web.Request) -> web.Response:
        return _json(overview.overview(self._service))

    async def _prefixes(self, request: web.Request) -> web.Response:
        return _json(await overview.prefixes(self._service, self._known_user(request)))

    async def _misses(self, request: web.Request) -> web.Response:
        return _json(overview.misses(self._service, self._known_user(request)))


def _json(value: object) -> web.Response:
    return web.Response(text=json.dumps(value), content_type="application/json")


def _static(name: str, kind: str) -> Handler:
    text = files(__package__).joinpath("static", name).read_text(encoding="utf-8")

    async def handler(request: web.Request) -> web.Response:
        return web.Response(text=text, content_type=kind)

    return handler
