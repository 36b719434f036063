"""Errors of Redis, redis-py and the network as `LookupFailed`, with reasons without data.

The server's own messages are not passed on: some quote a command with its arguments.
"""

from __future__ import annotations

import ssl

from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterCrossSlotError,
    ClusterDownError,
    ClusterError,
    ConnectionError,  # noqa: A004 - it has no other name
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TimeoutError,  # noqa: A004 - it has no other name
    TryAgainError,
)

from idv_redis.options import IN_CLUSTER
from tornado_idv import Broken, LookupFailed, Unavailable

_UNREACHED = "the server cannot be reached, or closed the connection"
_Reasons = tuple[tuple[type[Exception], type[LookupFailed], str], ...]
_OF_CLUSTER: _Reasons = (
    (ClusterDownError, Unavailable, "the cluster is down"),
    (ClusterError, Unavailable, "the cluster is moving the key to another node"),
    (RedisClusterException, Unavailable, "the cluster cannot be reached, or url is no node of one"),
)
"""What a client of a cluster raises, before the reasons that follow."""
_REASONS: _Reasons = (
    # The first that fits counts: redis-py derives most of these from ConnectionError.
    (AuthenticationError, Broken, "the server refuses the user or password in the url"),
    (AuthorizationError, Broken, "the server refuses the user or password in the url"),
    (NoPermissionError, Broken, "the user in the url may not run a command or read a key; see ACL"),
    (BusyLoadingError, Unavailable, "the server is loading its data"),
    (ReadOnlyError, Unavailable, "the server is a replica, and refuses this"),
    (OutOfMemoryError, Unavailable, "the server has reached maxmemory"),
    (AskError, Broken, IN_CLUSTER),
    (ClusterCrossSlotError, Broken, IN_CLUSTER),
    (ClusterDownError, Broken, IN_CLUSTER),
    (TryAgainError, Broken, IN_CLUSTER),
    (MasterDownError, Unavailable, "the server is a replica without its primary"),
    (TimeoutError, Unavailable, "the server did not respond in time"),
    (OSError, Unavailable, _UNREACHED),
    (ConnectionError, Unavailable, _UNREACHED),
)
_OF_SERVER = {"WRONGTYPE": "a key has another type than expected"}


def to_lookup_failed(error: Exception, *, in_cluster: bool = False) -> LookupFailed:
    """Return the `Unavailable` or `Broken` for an error of a command.

    A lost or refused connection does not count for the circuit breaker: it costs nothing to try
    again, and an open circuit would prolong the outage. A timeout counts.
    """
    if isinstance(error, LookupFailed):
        return error
    if isinstance(error.__cause__ or error.__context__, ssl.SSLError):
        return Unavailable("the TLS handshake failed; see ssl_ca_certs of the url")
    for kind, failure, reason in (*_OF_CLUSTER, *_REASONS) if in_cluster else _REASONS:
        if isinstance(error, kind):
            waits = isinstance(error, TimeoutError) or failure is Broken
            return failure(reason, counts_against_breaker=waits)
    if isinstance(error, ResponseError):
        code = str(error).partition(" ")[0]
        return Broken(_OF_SERVER.get(code, "the server rejected a command"))
    kind_of = "the client" if isinstance(error, RedisError) else "the url"
    return Broken(f"{kind_of} cannot be used: {type(error).__name__}")
