"""A limit for the size of a response, including interim responses (1xx) and framing.

aiohttp has no such limit. Only this module uses private parts of aiohttp. If another version of
aiohttp changes these parts, lookups still work, but without this limit.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import aiohttp

from idv_upstream.response.raw import MAX_BODY, too_long

MAX_RESPONSE = 2 * MAX_BODY
"""Maximum size in bytes of a response: body, framing, head and interim responses."""

_log = logging.getLogger(__name__)


def bound_responses(connector: aiohttp.BaseConnector) -> None:
    """Make connections fail with `Broken` after `MAX_RESPONSE` bytes of one response."""
    factory: Any = getattr(connector, "_factory", None)
    protocol: Any = getattr(factory, "func", None)
    if not hasattr(protocol, "set_response_params"):
        _log.warning(
            "aiohttp %s: the size of interim responses (1xx) of upstreams is not limited",
            aiohttp.__version__,
        )
        return

    class Bounded(protocol):  # type: ignore[misc]
        _left = MAX_RESPONSE

        def set_response_params(self, **params: Any) -> None:
            """Reset the byte limit: aiohttp calls this method before each request."""
            self._left = MAX_RESPONSE
            super().set_response_params(**params)

        def data_received(self, data: bytes) -> None:
            left, self._left = self._left, self._left - len(data)
            if left < 0:
                return
            super().data_received(data[:left])
            if self._left < 0:
                payload = getattr(self, "_payload", None)
                self.close()
                self.set_exception(too_long())
                if payload is not None:
                    payload.set_exception(too_long())

    connector._factory = partial(Bounded, *factory.args, **factory.keywords)  # type: ignore[assignment]  # noqa: SLF001
