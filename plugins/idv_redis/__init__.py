"""The kinds ``redis``: a backend and a shared cache in a Redis server."""

from tornado_idv import Kinds, hookimpl


@hookimpl
def idv_kinds() -> Kinds:
    """Provide the kinds ``redis``."""
    return Kinds(
        backends={"redis": "idv_redis.backend:RedisBackend"},
        shared_caches={"redis": "idv_redis.shared_cache:RedisSharedCache"},
    )
