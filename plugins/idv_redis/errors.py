"""The conversion of errors of Redis, redis-py and the network to `LookupFailed`.

The reasons contain no data. Messages of the server are dropped, because some quote a command.
"""

import ssl

from redis import exceptions

from idv_redis.options import IN_CLUSTER
from tornado_idv import Broken, LookupFailed, Unavailable

_UNREACHED = "the server cannot be reached, or closed the connection"
_Reasons = tuple[tuple[type[Exception], type[LookupFailed], str], ...]
_OF_CLUSTER: _Reasons = (
    (exceptions.ClusterDownError, Unavailable, "the cluster is down"),
    (exceptions.ClusterError, Unavailable, "the cluster is moving the key to another node"),
    (
        exceptions.RedisClusterException,
        Unavailable,
        "the cluster cannot be reached, or url is not one of its nodes",
    ),
)
"""Reasons for errors in a cluster. There, they take precedence over `_REASONS`."""
_REASONS: _Reasons = (
    # The first match counts. MasterDownError is a ClusterDownError, most others ConnectionErrors.
    (exceptions.AuthenticationError, Broken, "the server refuses the user or password in the url"),
    (
        exceptions.NoPermissionError,
        Broken,
        "the user in the url may not run a command or read a key; see ACL",
    ),
    (exceptions.BusyLoadingError, Unavailable, "the server is loading its data"),
    (exceptions.ReadOnlyError, Unavailable, "the server is a replica, not the primary"),
    (exceptions.OutOfMemoryError, Unavailable, "the server has reached maxmemory"),
    (exceptions.MasterDownError, Unavailable, "the server is a replica without its primary"),
    (exceptions.AskError, Broken, IN_CLUSTER),
    (exceptions.ClusterCrossSlotError, Broken, IN_CLUSTER),
    (exceptions.ClusterDownError, Broken, IN_CLUSTER),
    (exceptions.TryAgainError, Broken, IN_CLUSTER),
    (exceptions.TimeoutError, Unavailable, "the server did not respond in time"),
    (OSError, Unavailable, _UNREACHED),
    (exceptions.ConnectionError, Unavailable, _UNREACHED),
)
_REJECTED = (Broken, "the server rejected a command")
_OF_SERVER: dict[str, tuple[type[LookupFailed], str]] = {
    "WRONGTYPE": (Broken, "a key has an unexpected type"),
    "BUSY": (Unavailable, "the server runs a long script"),
}


def to_lookup_failed(error: Exception, *, in_cluster: bool = False) -> LookupFailed:
    """Return the `Unavailable` or `Broken` for an error of a command.

    A timeout counts for the circuit breaker. A lost or refused connection does not count, because
    another attempt is cheap, and an open circuit would prolong the outage.
    """
    if isinstance(error, LookupFailed):
        return error
    if isinstance(error.__cause__ or error.__context__, ssl.SSLError):
        return Unavailable("the TLS handshake failed; see ssl_ca_certs of the url")
    if type(error) is RuntimeError:  # uvloop raises it for a reset while it connects
        return Unavailable(_UNREACHED, counts_against_breaker=False)
    for kind, failure, reason in (*_OF_CLUSTER, *_REASONS) if in_cluster else _REASONS:
        if isinstance(error, kind):
            waits = isinstance(error, exceptions.TimeoutError) or failure is Broken
            return failure(reason, counts_against_breaker=waits)
    if isinstance(error, exceptions.ResponseError):
        failure, reason = _OF_SERVER.get(str(error).partition(" ")[0], _REJECTED)
        return failure(reason)
    kind_of = "the client" if isinstance(error, exceptions.RedisError) else "the url"
    return Broken(f"{kind_of} cannot be used: {type(error).__name__}")
