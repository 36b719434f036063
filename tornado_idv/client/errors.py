"""Exceptions of the client. They never contain a key, a nickname or a card number."""


class ClientError(Exception):
    """Base class of all errors of lookups, never raised directly.

    ``request_id`` identifies the lookup in the logs of the service. ``status`` is the status code
    of the response, or ``None`` if there was no response.
    """

    request_id: str = ""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status

    def __str__(self) -> str:
        return f"{self.args[0]} (request {self.request_id})"


class NotFound(ClientError):
    """The user does not exist. Only `get` and `get_card` raise this."""


class Undetermined(ClientError):
    """The service did not respond before the deadline, or could not determine the result."""

    retry_after: float | None = None
    """Seconds to wait before the next attempt, from the field ``Retry-After`` of the response."""


class RateLimited(Undetermined):
    """A rate limit was exceeded, and the deadline is too short to wait."""


class Unexpected(ClientError):
    """The response is not from this service, or not for this request."""


class InvalidKey(ClientError):
    """The key is unknown, expired or revoked."""


class MissingScope(ClientError):
    """The key does not permit this lookup."""


class InvalidFormat(ClientError):
    """The value has an invalid format. ``reason`` is the token in ``X-Error-Reason``, if any."""

    reason: str | None = None
