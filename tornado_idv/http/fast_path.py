"""The interface of an object that answers requests without the application."""

from __future__ import annotations

from typing import Protocol

from tornado_idv.http.exchange import Exchange


class FastPath(Protocol):
    """A shortcut from the bytes of a request to its response; one object for each connection."""

    def respond(self, segment: bytes) -> bytes | None:
        """Return the response to ``segment``, which may be one whole request.

        ``None`` sends it on the normal path. A client with a response from here counts as
        authenticated, as after `Exchange.authenticated`.
        """

    def store(self, exchange: Exchange) -> None:
        """Learn from a completed exchange whose `Exchange.cacheable` is set."""
