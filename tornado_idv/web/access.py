"""One log line for each answer, of what may be known to whoever reads logs."""

from __future__ import annotations

import logging
import time

from tornado.web import RequestHandler

from tornado_idv.web.handler import JsonHandler

_log = logging.getLogger("tornado_idv.access")


def log_access(handler: RequestHandler) -> None:
    """Logs method, route, status, milliseconds, key id and request id; nothing of the input."""
    if isinstance(handler, JsonHandler) and _log.isEnabledFor(logging.INFO):
        known = handler.request.method in handler.SUPPORTED_METHODS
        fields = {
            "method": handler.request.method if known else "other",
            "route": handler.route,
            "status": handler.get_status(),
            "ms": round((time.monotonic() - handler.started) * 1000, 2),
            "key": handler.key_id,
            "request_id": handler.request_id,
        }
        _log.info("answered", extra=fields)
