"""Users in a Redis server, which are read and never written: the kind ``redis``."""

from __future__ import annotations

from collections.abc import Mapping

from tornado_idv import hookimpl


@hookimpl
def idv_backend_kinds() -> Mapping[str, str]:
    """Provide the kind ``redis``."""
    return {"redis": "idv_redis.backend:RedisBackend"}
