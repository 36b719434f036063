"""Shared limits in Redis: services allow a key one limit together, and survive without Redis."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from idv_redis.options import RedisLimitsOptions
from idv_redis.shared_limits import RedisSharedLimits
from support.databases.redis_server import PASSWORD, RedisServer, running_server
from support.processes.admin import ask_admin
from support.processes.process import Invoke, ServiceProcess, eventually, running
from support.processes.service import CONFIG, FIXTURE, KEY, Client
from tornado_idv import LimitUse, LookupFailed
from tornado_idv.keys.token import issue

pytestmark = pytest.mark.slow

SECRET = "canary" * 8
USE = LimitUse("requests 20/60.0 shop", 3.0)
OTHER_KEYS = [issue(name) for name in ("stopped", "frozen", "slow")]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_server() as server:
        yield server


@asynccontextmanager
async def limits(server: RedisServer, **options: Any) -> AsyncIterator[RedisSharedLimits]:
    given = {"kind": "redis", "url": server.url, "secret": SECRET, **options}
    shared = RedisSharedLimits(RedisLimitsOptions.model_validate(given))
    yield shared
    await shared.close()


async def test_uses_of_processes_are_added_up_by_the_clock_of_the_server(
    server: RedisServer,
) -> None:
    server.run("FLUSHALL")
    async with limits(server) as first, limits(server) as second:
        assert await first.exchange(0.1, [USE]) == [pytest.approx(2.9)]
        once = LimitUse("misses 1/0.05 shop", 0.05)
        ahead = await second.exchange(0.1, [USE, once])
        assert ahead == [pytest.approx(5.9, abs=0.5), pytest.approx(-0.05)]
        assert await second.exchange(0.1, []) == []
        keys = [each for each in server.run("KEYS", "*").split() if b"idv:limit:" in each]
        assert not any(b"shop" in each for each in keys)
        lives = {int(server.run("PTTL", key).strip(b":\r\n")): key for key in keys}
        assert 2000 < min(lives) <= 2950
        assert 7000 < max(lives) <= 8900
        server.run("SET", lives[max(lives)], "no number")
        assert await first.exchange(0.1, [USE]) == [pytest.approx(2.9)]


async def test_clock_that_steps_back_makes_no_key_wait_longer(server: RedisServer) -> None:
    """As when a replica takes over: a stored time is later than the server's."""
    server.run("FLUSHALL")
    use = LimitUse("requests 1/10.0 shop", 10.0)
    async with limits(server) as one:
        assert await one.exchange(0.1, [use]) == [pytest.approx(9.9)]
        (key,) = [each for each in server.run("KEYS", "*").split() if b"idv:limit:" in each]
        ahead = time.time() + 3600
        server.run("SET", key, f"{ahead + 9.9:.6f} {ahead:.6f}")
        assert await one.exchange(0.1, [use]) == [pytest.approx(19.9, abs=0.5)]


async def test_machines_that_each_use_less_than_the_rate_are_added_up(server: RedisServer) -> None:
    """Of 0.1 s, each of three uses 0.09 s."""
    server.run("FLUSHALL")
    use = LimitUse("requests 100/1.0 shop", 0.09)
    async with limits(server) as one:
        ahead = [(await one.exchange(0.1, [use]))[0] for _ in range(3)]
    assert ahead[0] == pytest.approx(-0.01)
    assert ahead[2] > 0.09


async def test_a_server_that_is_full_is_noticed_without_a_use(server: RedisServer) -> None:
    """So that exchanges do not seem to succeed in between."""
    async with limits(server) as one:
        server.run("CONFIG", "SET", "maxmemory", "1")
        try:
            for uses in ([USE], []):
                with pytest.raises(LookupFailed, match="maxmemory"):
                    await one.exchange(0.1, uses)
        finally:
            server.run("CONFIG", "SET", "maxmemory", "0")
        assert await one.exchange(9.0, []) == []


async def test_a_user_with_the_documented_rights_can_exchange(server: RedisServer) -> None:
    readme = Path("plugins/idv_redis/README.md").read_text()
    (line,) = [each for each in readme.splitlines() if each.startswith("ACL SETUSER idv-limits ")]
    server.run(*line.replace("LONG-RANDOM-TEXT", PASSWORD).split())
    url = server.url.replace("//", f"//idv-limits:{PASSWORD}@")
    async with limits(server, url=url) as one:
        assert await one.exchange(0.1, [USE])
    async with limits(server, url=url, prefix="other:") as one:
        with pytest.raises(LookupFailed, match="may not run a command or read a key"):
            await one.exchange(0.1, [USE])


@dataclass
class Replica:
    """A service, as on a machine of its own: it shares no memory with others."""

    process: ServiceProcess
    admin_url: str | None

    def status(self, key: str = KEY) -> int:
        fields = {"Authorization": f"Bearer {key}"}
        client = Client(self.process.port)
        return client.post("/api/v1/identify/url", b'{"input": "@alice"}', fields).status

    def allowed(self, attempts: int, key: str = KEY) -> int:
        """Return how many of some requests are allowed."""
        return [self.status(key) for _ in range(attempts)].count(200)

    def exchanges(self) -> str:
        """Return the metric that counts exchanges."""
        time.sleep(0.02)  # it is polled
        text = ask_admin(self, "/metrics").body.decode()
        name = 'idv_limit_exchanges_total{result="ok"}'
        (line,) = [each for each in text.splitlines() if each.startswith(name)]
        return line

    def allowed_then_exchanged(self, attempts: int, key: str = KEY) -> int:
        """Return the same, once it has been exchanged if any is allowed."""
        before = self.exchanges()
        count = self.allowed(attempts, key)
        eventually(lambda: not count or self.exchanges() != before)
        return count

    def config(self) -> Path:
        """Return a configuration with the port of its admin listener."""
        _, _, port = str(self.admin_url).rpartition(":")
        text = self.process.log.with_suffix(".yaml").read_text()
        path = self.process.log.with_name("used.yaml")
        path.write_text(text.replace("admin: {port: 0}", f"admin: {{port: {port}}}"))
        return path

    def is_degraded(self) -> bool:
        time.sleep(0.02)  # it is polled
        return "shared limits" in ask_admin(self, "/health/ready").json["degraded"]


@pytest.fixture(scope="module")
def replicas(
    server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Replica, Replica]]:
    folder = tmp_path_factory.mktemp("replicas")
    (folder / "users.yaml").write_text(FIXTURE)
    keys = "".join(f"    - {{id: key-{i}, token: {key}}}\n" for i, key in enumerate(OTHER_KEYS))
    config = (
        "limits: {requests: 20/hour}\nadmin: {port: 0}\n"
        f"shared_limits: {{kind: redis, url: '{server.url}', secret: {SECRET}}}\n"
        + CONFIG.replace(
            "backends:\n", f"{keys}backends:\n  - {{name: users, kind: yaml, path: users.yaml}}\n"
        )
    )
    paths = [folder / "first.yaml", folder / "second.yaml"]
    paths[0].write_text(config)
    paths[1].write_text(config.replace("port: 0, body", "port: 0, workers: 2, body"))
    with running(paths[0]) as first, running(paths[1]) as second:
        yield Replica(first, first.admin_url), Replica(second, second.admin_url)


def test_two_services_allow_a_key_one_limit_together(
    server: RedisServer, replicas: tuple[Replica, Replica]
) -> None:
    counts = [each.allowed_then_exchanged(4) for _ in range(5) for each in replicas]
    assert 20 <= sum(counts) <= 20 + 8  # the second has two workers, which exchange in turn
    assert counts[-2:] == [0, 0]
    assert b"idv:limit:" in server.run("KEYS", "*")
    assert b"caller" not in server.run("KEYS", "*")


def test_without_the_server_each_service_allows_its_own(
    server: RedisServer, replicas: tuple[Replica, Replica], invoke: Invoke
) -> None:
    """A server that hangs delays no request, and once it responds, limits are shared again."""
    server.stop()
    assert [each.allowed(25, OTHER_KEYS[0]) for each in replicas] == [20, 20]
    eventually(lambda: all(each.is_degraded() for each in replicas))
    status = invoke("status", "--config", replicas[0].config())
    assert "limits:       not shared: the server cannot be reached" in status.stdout
    server.start()
    eventually(lambda: not any(each.is_degraded() for each in replicas))
    server.pause()
    try:
        started = time.monotonic()
        assert [each.allowed(25, OTHER_KEYS[1]) for each in replicas] == [20, 20]
        assert time.monotonic() - started < 5  # of 50 requests; one exchange takes 0.5 s to fail
        eventually(lambda: all(each.is_degraded() for each in replicas))
    finally:
        server.resume()
    eventually(lambda: not any(each.is_degraded() for each in replicas))
    assert replicas[0].allowed_then_exchanged(25, OTHER_KEYS[2]) == 20
    # The first of these are allowed before the second service knows of all those of the first.
    assert sum(replicas[1].allowed_then_exchanged(1, OTHER_KEYS[2]) for _ in range(6)) <= 3
    log = replicas[0].process.read_log()
    assert "shared limits: not exchanged: the server cannot be reached" in log
    assert "shared limits: not exchanged: the server did not respond in time" in log
    assert log.count("shared limits: exchanged again") == 2
    assert PASSWORD not in log
