"""Errors of the client; none contains a key, a nickname or a card number."""

from __future__ import annotations


class ClientError(Exception):
    """Base of every error of a lookup; never raised directly.

    ``request_id`` is that of the lookup in the logs of the service. ``status`` is that of the
    response, if there was one.
    """

    request_id: str = ""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status

    def __str__(self) -> str:
        return f"{self.args[0]} (request {self.request_id})"


class NotFound(ClientError):
    """The user does not exist; raised by `get` and `get_card` alone."""


class Undetermined(ClientError):
    """The service could not be reached in time, or could not determine the result."""

    retry_after: float | None = None
    """Seconds that the service asked to wait."""


class RateLimited(Undetermined):
    """A rate limit was exceeded, and the deadline is too short to wait."""


class Unexpected(ClientError):
    """The response is not of this service, or for another request."""


class InvalidKey(ClientError):
    """The key is unknown, expired or revoked."""


class MissingScope(ClientError):
    """The key does not permit this lookup."""


class InvalidFormat(ClientError):
    """The value is in no valid format; ``reason`` is a token of the HTTP reference."""

    reason: str | None = None
