"""A Redis server for tests of the shared cache, and patience for connections to an upstream."""

from collections.abc import Iterator

import pytest

from idv_redis.shared_cache import RedisSharedCache
from idv_upstream.transport import client
from support.databases.redis_server import RedisServer, running_server


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a busy machine more than half a second for a crowd of connections."""
    monkeypatch.setattr(client, "CONNECT_TIMEOUT", 10.0)


@pytest.fixture(scope="module")
def _running_redis() -> Iterator[RedisServer]:
    with running_server() as server:
        yield server


@pytest.fixture
def server(_running_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> RedisServer:
    """An empty server, which replicas check often."""
    monkeypatch.setattr(RedisSharedCache, "interval", 0.1)
    if _running_redis.process is None:
        _running_redis.start()
    _running_redis.run("FLUSHALL")
    return _running_redis
