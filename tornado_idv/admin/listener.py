"""The admin listener: access control, JSON and errors of its handlers, and the core's endpoints."""

import json
import logging
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from ipaddress import ip_address
from pkgutil import resolve_name
from typing import Any, ClassVar

from tornado.web import Application, HTTPError

from tornado_idv import strict_json
from tornado_idv.admin.metrics import render
from tornado_idv.admin.operations import OperationFailed, Operations, Record, parse_query
from tornado_idv.admin.report import FAILED, INVALID, health
from tornado_idv.config.types import is_ip_address
from tornado_idv.errors import InvalidFormat, InvalidKey, format_traceback
from tornado_idv.features import FEATURES
from tornado_idv.http.connection_table import HttpLimits
from tornado_idv.http.server import HttpServer
from tornado_idv.http.serving import Serving
from tornado_idv.web.app import make_reject
from tornado_idv.web.errors import ApiError, error_for
from tornado_idv.web.handler import JsonHandler

_log = logging.getLogger(__name__)
_audit = logging.getLogger("tornado_idv.audit")
_LIMITS = HttpLimits(
    max_connections=64,
    replace_idle=True,
    warning="limit of %d connections of the admin listener reached: closing idle ones",
    idle_timeout=5.0,
    keep_alive_timeout=75.0,  # longer than the usual interval of scrapes and health checks
)
_ERRORS = {
    error.status: error
    for error in (ApiError.BAD_REQUEST, ApiError.NO_SUCH_ROUTE, ApiError.METHOD, ApiError.INTERNAL)
}
_RELOAD_ERRORS = {
    INVALID: (422, "The configuration is not valid; the old one stays in force"),
    FAILED: (503, "The configuration cannot be applied; the old one stays in force"),
}
_PURGE_PENDING = (
    "Purged here, but the shared cache has not received the purge: other services may still serve "
    "the purged answers. The purge is repeated until the service stops; see "
    "shared_cache.pending_purges of /status.json"
)


class AdminError(HTTPError):
    """Raised by handlers for an error response. ``message`` must not contain request data."""

    def __init__(self, message: str, status: int = 422, code: str = "invalid_format") -> None:
        super().__init__(status)
        self.code = code
        self.message = message


class AdminHandler(JsonHandler):
    """A handler that responds with JSON to operators.

    A listener on loopback needs no key. Instead, the ``Host`` field is checked to prevent DNS
    rebinding: a web page could let its own host name point to this machine, and read the responses.
    Any other listener needs a key with the scope ``admin``.
    """

    has_data: ClassVar[bool] = True
    """Whether responses contain data of the service. If they do not, no key is needed."""
    key_id: str | None = None

    def initialize(self, operations: Operations, host: str, *, needs_key: bool) -> None:
        self.operations = operations
        self._host = host
        self._needs_key = needs_key

    def prepare(self) -> None:
        if not self._needs_key:
            name = self.request.host_name.strip("[]")
            if not is_ip_address(name) and name not in ("localhost", self._host.lower()):
                text = "The Host must be an IP address, localhost or admin.host"
                raise AdminError(text, 421, "host_not_allowed")
        elif self.has_data:
            self._check_key()
        if self.request.method not in self.allowed:
            raise HTTPError(405)
        if self.request.method in {"POST", "PUT"}:
            # Before a request of another web site with this type, a browser sends a CORS preflight.
            # The preflight fails here.
            media_type = self.request.headers.get("Content-Type", "").partition(";")[0]
            if media_type.strip().lower() != "application/json":
                text = "The Content-Type must be application/json"
                raise AdminError(text, 415, ApiError.MEDIA_TYPE.code)

    def send(self, record: Record, status: int = 200) -> None:
        """Send a JSON record."""
        self.set_status(status)
        self.finish(json.dumps(record, separators=(",", ":")))

    def record(self) -> Record:
        """Return the JSON object in the body. Raises `AdminError`."""
        try:
            record = strict_json.loads(self.body)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise AdminError("The body must be one JSON object")
        return record

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        super().write_error(status_code, **kwargs)
        error = kwargs.get("exc_info", (None, None))[1]
        if isinstance(error, AdminError):
            code, message = error.code, error.message
        elif isinstance(error, InvalidFormat):
            status_code, code, message = 422, "invalid_format", f"Invalid value: {error}"
        elif isinstance(error, OperationFailed):
            status_code, code, message = 503, "worker_failed", str(error)
        else:
            known = _ERRORS.get(status_code, ApiError.BAD_REQUEST)
            code, message = known.code, known.message
        if status_code == ApiError.TOKEN.status:
            self.set_header("WWW-Authenticate", "Bearer")
        self.send({"status": "error", "code": code, "message": message}, status_code)

    def log_exception(self, typ: object, value: BaseException | None, tb: object) -> None:
        """Log an unexpected exception. Unlike in Tornado, omit its message and the request."""
        expected = HTTPError | InvalidFormat | OperationFailed
        if value is not None and not isinstance(value, expected):
            _log.error("unhandled exception:\n%s", format_traceback(value))

    def _check_key(self) -> None:
        try:
            key = self.authenticate(self.operations.ring)
        except InvalidKey as error:
            raise self._rejected(error_for(error), error.key_id, error.reason) from None
        if "admin" not in key.scopes:
            raise self._rejected(ApiError.SCOPE, key.id, "no scope admin")
        self.key_id = key.id

    def _rejected(self, error: ApiError, key_id: str | None, reason: str) -> AdminError:
        address = self.request.remote_ip
        _log.warning("admin: rejected a request of %s, key %s: %s", address, key_id or "-", reason)
        return AdminError(error.message, error.status, error.code)


class NoSuchRouteHandler(AdminHandler):
    """Responds with 404 to requests for unknown paths."""

    def prepare(self) -> None:
        if self._needs_key:
            self._check_key()
        raise HTTPError(404)


class LiveHandler(AdminHandler):
    """The liveness check. It ignores failed backends, because a restart would not help."""

    has_data = False

    async def get(self) -> None:
        self.send({"status": "ok"})


class ReadyHandler(AdminHandler):
    """The readiness check. It fails with 503 while the service starts or drains.

    If a backend is down, the service is *degraded*, but ready. Other instances have the same
    backend, and this instance can still respond from its cache.
    """

    async def get(self) -> None:
        verbose = "verbose" in self.request.query_arguments
        report = await self.operations.report()
        self.send(health(report, verbose=verbose), 200 if report.phase == "ready" else 503)


class MetricsHandler(AdminHandler):
    """Responds with the metrics for Prometheus."""

    async def get(self) -> None:
        report = await self.operations.report(take_lag=True)
        accept = self.request.headers.get("Accept", "")
        text, content_type = render(report, await self.operations.ring.overview(), accept)
        self.set_header("Content-Type", content_type)
        self.finish(text)


class PurgeHandler(AdminHandler):
    """Purges cached answers: those about one user, those of one backend, or all."""

    allowed = ("POST",)

    async def post(self) -> None:
        record = self.record()
        match record:
            case {"all": True} if len(record) == 1:
                purged = {"purged": "all"}
            case {"backend": str(name)} if len(record) == 1:
                known = [each.name for each in self.operations.settings.served]
                if name not in known:
                    raise AdminError(f"No such backend; there are: {', '.join(known)}")
                purged = {"purged": "backend", "backend": name}
            case {"nickname": str()} | {"card_number": str()} if len(record) == 1:
                parse_query(self.operations.settings, record)
                purged = {"purged": "user"}
            case _:
                names = "nickname, card_number, backend and all: true"
                raise AdminError(f"The body must have exactly one of {names}")
        delivered = await self.operations.purge(record)
        who = {"client": self.request.remote_ip or "", "key": self.key_id}
        _audit.info("cache purged", extra={**purged, **who})
        if not delivered:
            raise AdminError(_PURGE_PENDING, 503, "purge_pending")
        self.send({"status": "ok", "purged": purged["purged"]})


class ReloadHandler(AdminHandler):
    """Reloads the configuration. The body may be empty."""

    allowed = ("POST",)

    async def post(self) -> None:
        result = await self.operations.reload(client=self.request.remote_ip, key=self.key_id)
        if result.code is None:
            self.send({"status": "ok", "needs_restart": result.needs_restart})
        else:
            status_code, message = _RELOAD_ERRORS[result.code]
            record = {"status": "error", "code": result.code, "message": message}
            self.send({**record, "problems": result.problems}, status_code)


class ExplainHandler(AdminHandler):
    """Shows how each backend and the cache answer a query, without data of the user."""

    allowed = ("POST",)

    async def post(self) -> None:
        record = self.record()
        match record:
            case {"input": str()} | {"card_number": str()} if len(record) == 1:
                parse_query(self.operations.settings, record)
            case _:
                raise AdminError("The body must have exactly one of input and card_number")
        self.send({"status": "ok", **await self.operations.explain(record)})


ROUTES: dict[str, type[AdminHandler]] = {
    "/health/live": LiveHandler,
    "/health/ready": ReadyHandler,
    "/metrics": MetricsHandler,
    "/cache/purge": PurgeHandler,
    "/explain": ExplainHandler,
    "/reload": ReloadHandler,
}


@asynccontextmanager
async def admin_listening(
    sockets: Sequence[socket.socket], host: str, operations: Operations, **settings: Any
) -> AsyncIterator[None]:
    """Serve the admin listener on bound sockets. ``host`` is ``admin.host``.

    ``settings`` are the settings of the Tornado application. Features may read and add settings.
    """
    arguments = {
        "operations": operations,
        "host": host,
        "needs_key": not all(ip_address(each.getsockname()[0]).is_loopback for each in sockets),
    }
    routes = {**ROUTES}
    async with AsyncExitStack() as stack:
        for place in (each.admin_routes for each in FEATURES if each.admin_routes):
            routes |= await stack.enter_async_context(resolve_name(place)(operations, settings))
        application = Application(
            [(path, handler, arguments) for path, handler in routes.items()],
            default_handler_class=NoSuchRouteHandler,
            default_handler_args=arguments,
            log_function=lambda _: None,
            **settings,
        )
        serving = Serving(application, make_reject(None), _LIMITS)
        server = stack.enter_context(closing(HttpServer(serving)))
        await server.listen(sockets)
        yield
