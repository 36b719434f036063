"""The endpoints of the core on the admin listener."""

import logging

from tornado_idv.admin.handler import AdminError, AdminHandler
from tornado_idv.admin.health import health
from tornado_idv.admin.metrics import render
from tornado_idv.admin.report import FAILED, INVALID

_audit = logging.getLogger("tornado_idv.audit")
_RELOAD_ERRORS = {
    INVALID: (422, "The configuration is not valid; the old one stays in force"),
    FAILED: (503, "The configuration cannot be applied; the old one stays in force"),
}
_PURGE_PENDING = (
    "Purged here, but the shared cache has not received the purge: other services may still serve "
    "the purged answers. The purge is repeated until the service stops; see "
    "shared_cache.pending_purges of /status.json"
)


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
                    message = f"No such backend; there are: {', '.join(known)}"
                    raise AdminError(422, "invalid_format", message)
                purged = {"purged": "backend", "backend": name}
            case {"nickname": str()} | {"card_number": str()} if len(record) == 1:
                self.check_query(record)
                purged = {"purged": "user"}
            case _:
                names = "nickname, card_number, backend and all: true"
                message = f"The body must have exactly one of {names}"
                raise AdminError(422, "invalid_format", message)
        delivered = await self.operations.purge(record)
        who = {"client": self.request.remote_ip or "", "key": self.key_id}
        _audit.info("cache purged", extra={**purged, **who})
        if not delivered:
            raise AdminError(503, "purge_pending", _PURGE_PENDING)
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
                self.check_query(record)
            case _:
                message = "The body must have exactly one of input and card_number"
                raise AdminError(422, "invalid_format", message)
        self.send({"status": "ok", **await self.operations.explain(record)})


ROUTES: dict[str, type[AdminHandler]] = {
    "/health/live": LiveHandler,
    "/health/ready": ReadyHandler,
    "/metrics": MetricsHandler,
    "/cache/purge": PurgeHandler,
    "/explain": ExplainHandler,
    "/reload": ReloadHandler,
}
