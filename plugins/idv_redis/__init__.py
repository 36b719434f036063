"""Users in a Redis server, and a cache of answers and limits in one: the kinds ``redis``."""

from __future__ import annotations

from collections.abc import Mapping

from tornado_idv import hookimpl


@hookimpl
def idv_backend_kinds() -> Mapping[str, str]:
    """Provide the kind ``redis``."""
    return {"redis": "idv_redis.backend:RedisBackend"}


@hookimpl
def idv_shared_cache() -> Mapping[str, str]:
    """Provide the shared cache ``redis``."""
    return {"redis": "idv_redis.shared_cache:RedisSharedCache"}


@hookimpl
def idv_shared_limits() -> Mapping[str, str]:
    """Provide the shared limits ``redis``."""
    return {"redis": "idv_redis.shared_limits:RedisSharedLimits"}
