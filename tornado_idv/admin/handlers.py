"""The endpoints of the admin listener."""

from __future__ import annotations

import logging

from tornado_idv.admin.handler import AdminError, AdminHandler
from tornado_idv.admin.history import INTERVAL, WINDOW
from tornado_idv.errors import InvalidFormat
from tornado_idv.model import Query

_audit = logging.getLogger("tornado_idv.audit")
_DRAINING = 503


class LiveHandler(AdminHandler):
    """Whether the process responds; nothing else is looked at, so no outage restarts it."""

    def get(self) -> None:
        self.send({"status": "ok"})


class ReadyHandler(AdminHandler):
    """Whether requests may be sent here: 503 while the service drains.

    A backend that is down makes it *degraded*, not unready: other instances have the same backend,
    and this one still responds from its cache.
    """

    def get(self) -> None:
        verbose = "verbose" in self.request.query_arguments or self.request.query == "verbose"
        self.send(self.state.health(verbose=verbose), _DRAINING if self.state.draining else 200)


class MetricsHandler(AdminHandler):
    """The metrics, for Prometheus."""

    def get(self) -> None:
        text, content_type = self.metrics.render(self.request.headers.get("Accept", ""))
        self.set_header("Content-Type", content_type)
        self.finish(text)


class StatusHandler(AdminHandler):
    """An overview for the operator."""

    def get(self) -> None:
        record = self.state.status()
        record["recent"] = self.history.latest
        for each in record["backends"]:
            each["latency_ms"] = self.history.backend_latency(each["name"])
        self.send(record)


class HistoryHandler(AdminHandler):
    """The samples of the last 15 minutes."""

    def get(self) -> None:
        columns = self.history.columns()
        self.send({"interval_s": INTERVAL, "window_s": WINDOW, "samples": columns})


class PurgeHandler(AdminHandler):
    """Drops cached answers: of a user, of a backend, or all."""

    allowed = ("POST",)

    def post(self) -> None:
        record = self.body()
        match record:
            case {"all": True} if len(record) == 1:
                self.state.directory.cache.purge()
                self._done("all")
            case {"backend": str(name)} if len(record) == 1:
                self._purge_backend(name)
            case {"nickname": str()} | {"card_number": str()} if len(record) == 1:
                self.state.directory.cache.purge_user(self._query(record))
                self._done("user")
            case _:
                names = "nickname, card_number, backend and all: true"
                message = f"The body must have exactly one of {names}"
                raise AdminError(422, "invalid_format", message)

    def _purge_backend(self, name: str) -> None:
        names = [guard.name for guard in self.state.directory.guards]
        if name not in names:
            message = f"No such backend; there are: {', '.join(names)}"
            raise AdminError(422, "invalid_format", message)
        self.state.directory.cache.purge_backend(name)
        self._done("backend", backend=name)

    def _query(self, record: dict[str, str]) -> Query:
        identifiers = self.state.identifiers
        try:
            if "nickname" in record:
                return identifiers.parse_nickname(record["nickname"].removeprefix("@"))
            return identifiers.parse_card(record["card_number"])
        except InvalidFormat as error:
            raise AdminError(422, "invalid_format", f"The value is {error}") from None

    def _done(self, purged: str, **fields: str) -> None:
        fields = {"purged": purged, **fields, "remote": self.request.remote_ip or ""}
        _audit.info("cache purged", extra={**fields, "key": self.key_id})
        self.send({"status": "ok", "purged": purged})


class ExplainHandler(AdminHandler):
    """How each backend responds to a query, and what is cached; the user is not shown."""

    allowed = ("POST",)

    async def post(self) -> None:
        query = self._query(self.body())
        cached = self.state.directory.cache.describe(query)
        explanation = await self.state.directory.explain(query)
        self.send(
            {
                "status": "ok",
                "result": explanation.result,
                "cache": cached,
                "backends": [
                    {
                        "backend": each.backend,
                        "outcome": each.outcome,
                        "ms": round(each.seconds * 1000, 2),
                    }
                    for each in explanation.calls
                ],
            }
        )

    def _query(self, record: dict[str, object]) -> Query:
        identifiers = self.state.identifiers
        try:
            match record:
                case {"input": str(text)} if len(record) == 1:
                    return identifiers.parse_input(text)
                case {"card_number": str(text)} if len(record) == 1:
                    return identifiers.parse_card(text)
        except InvalidFormat as error:
            raise AdminError(422, "invalid_format", f"The value is {error}") from None
        message = "The body must have exactly one of input and card_number"
        raise AdminError(422, "invalid_format", message)
