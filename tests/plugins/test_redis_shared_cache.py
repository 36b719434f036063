"""The shared cache in Redis: authenticity, purges of every replica, and a server that fails."""

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from pydantic import ValidationError

from idv_redis.options import RedisCacheOptions
from idv_redis.shared_cache import RedisSharedCache, Sealer
from support.databases.redis_replicas import SECRET, replicas
from support.databases.redis_server import PASSWORD, RedisServer
from support.fakes.directories import ALICE, QUERY, counts
from support.http.http_server import until
from support.http.metrics import scrape
from support.processes.admin import ask_admin
from support.processes.process import Invoke, eventually
from support.processes.service import CONFIG, USERS, Client, serving
from tornado_idv import ByCard, ByNickname, Purge, Query, SharedAnswer, SharedResult
from tornado_idv.interfaces.backend import BreakerOptions

pytestmark = pytest.mark.slow


async def test_an_answer_is_shared_and_the_server_shows_no_nickname_in_a_key(
    server: RedisServer,
) -> None:
    async with replicas(server) as (first, second):
        first.backend.source.answer = structs.replace(ALICE, profile_url="https://e.example/a")
        assert [await first.find(), await second.find()] == ["Free", "Free"]
        assert second.directory.get_cached(QUERY).user == first.backend.source.answer
        assert counts([first.backend, second.backend]) == [1, 0]
        keys = server.run("KEYS", "*")
        assert b"idv:" in keys
        assert b"alice" not in keys
        assert b"canary" not in keys
        key = next(each for each in keys.split(b"\r\n") if re.fullmatch(rb"idv:[0-9a-f]{64}", each))
        lifetime = int(server.run("PTTL", key).strip(b":\r\n"))
        assert 899_000 <= lifetime <= 900_001  # 300 s fresh, 600 s stale


async def test_entries_of_another_secret_key_version_or_generation_are_misses(
    server: RedisServer,
) -> None:
    """A client that can write to the server cannot invent a user, or move one to another key."""
    async with replicas(server, secret="another" * 8) as (first, second):
        cache = first.cache
        await first.find()
        assert await second.find() == "Free"
        assert counts([second.backend]) == [1]
        result = await cache.get("", QUERY)
        assert result.answer is not None
        bob, scoped = cache._key("", ByNickname("bob")), cache._key("x", QUERY)  # noqa: SLF001 - what another service has written
        sealed = await cache._client.execute("GET", cache._key("", QUERY))  # noqa: SLF001 - a server that is scripted
        forged = json.dumps([0, ["Pro", "1", "alice", None], "crm", 9e9, 9e9]).encode()
        for key, value in {bob: sealed, scoped: sealed, cache._key("", QUERY): forged}.items():  # noqa: SLF001 - what another service has written
            server.run("SET", key, value)
        for scope, query in (("", ByNickname("bob")), ("x", QUERY), ("", QUERY)):
            assert (await cache.get(scope, query)).answer is None
        server.run("SET", cache._key("", QUERY), sealed)  # noqa: SLF001 - what another service has written
        assert (await cache.get("", QUERY)).answer == result.answer
        assert (await cache.get("x", QUERY)).answer is None
        server.run("HSET", cache._marks, "*", "1")  # noqa: SLF001 - what another service has written
        assert (await cache.get("", QUERY)).answer is None


async def test_an_entry_that_has_expired_is_not_kept(server: RedisServer) -> None:
    async with replicas(server) as (first, _):
        await first.find()
        began = (await first.cache.get("", QUERY)).generation
        expired = SharedResult(began, SharedAnswer(None, None, time.time() - 9, time.time() - 9))
        await first.cache.put("", QUERY, expired)
        assert (await first.cache.get("", QUERY)).answer is None
        assert await first.cache._client.execute("EXISTS", first.cache._key("", QUERY)) == 0  # noqa: SLF001 - a server that is scripted


@pytest.mark.parametrize(
    "purge",
    [Purge(queries=(QUERY,)), Purge(queries=(ByCard(ALICE.card_number),)), Purge(("crm",))],
    ids=["nickname", "card", "backend"],
)
@pytest.mark.parametrize("stored", [QUERY, ByCard(ALICE.card_number)], ids=["nickname", "card"])
async def test_a_purge_of_a_user_or_backend_leaves_the_shared_answers_of_others(
    server: RedisServer, purge: Purge, stored: Query
) -> None:
    """Also for a replica that starts later, and of the user it leaves none."""
    async with replicas(server) as (first, second):
        await first.find(stored)
        for other in (Purge(queries=(ByNickname("bob"), ByCard("1"))), Purge(("b",))):
            await first.purge(other)
            await second.wait_for(other)
        async with replicas(server) as (third, _):
            found = [await each.find_shared(stored) for each in (first, second, third)]
            assert found == ["Free", "Free", "Free"]
            assert counts([first.backend, second.backend, third.backend]) == [1, 0, 0]
        looked_up = await first.cache.get("", stored)
        assert looked_up.answer is not None
        await first.purge(purge)
        await second.wait_for(purge)
        await first.cache.put("", stored, looked_up)  # too late
        second.backend.source.answer = None
        assert await second.find_shared(stored) == "not found"
        async with replicas(server) as (third, _):
            await third.find(stored)
            # "Not found" is of the present generation, and is shared.
            assert counts([second.backend, third.backend]) == [1, 0]
        other = Purge(queries=(ByNickname("bob"),))
        await first.purge(other)
        await second.wait_for(other)
        second.backend.source.answer = ALICE
        assert await second.find_shared(stored) == "Free"


async def test_a_user_with_the_documented_rights_can_share_and_purge(server: RedisServer) -> None:
    readme = Path("plugins/idv_redis/README.md").read_text()
    (line,) = [each for each in readme.splitlines() if each.startswith("ACL SETUSER idv-cache ")]
    server.run(*line.replace("LONG-RANDOM-TEXT", PASSWORD).split())
    url = server.url.replace("//", f"//idv-cache:{PASSWORD}@")
    async with replicas(server, url=url) as (_, second):
        await second.find()
        second.directory.purge(Purge())
        assert await second.tier.wait_until_purged()
        await second.wait_for(Purge())
        assert second.tier.counted.results == {"miss": 1, "stored": 1, "purged": 1}
        await second.cache._receive(b"")  # noqa: SLF001 - of another program


async def test_a_message_that_cannot_be_read_purges_everything(
    server: RedisServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what is shared; it may be of another version or secret, and about any user."""
    monkeypatch.setattr(RedisSharedCache, "interval", 60.0)  # no comparison meanwhile
    async with replicas(server) as (first, _):
        sealed = Sealer(first.cache.options.secret).seal("other", [1])
        for message in (b"", b"x" * 40, b"x 1 " + sealed):
            await first.find()
            first.purges.clear()
            server.run("PUBLISH", "idv:purges", message)
            await first.wait_for(Purge())
            assert first.directory.get_cached(QUERY) is None
            assert (await first.cache.get("", QUERY)).answer is None
    assert caplog.text.count("a purge message cannot be read") == 2


async def test_a_server_that_is_down_at_the_start_is_used_when_it_is_there(
    server: RedisServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was cached before is purged: purges may have been missed. Each logs the outage once."""
    monkeypatch.setattr(RedisSharedCache, "interval", 0.002)
    monkeypatch.setattr("idv_redis.shared_cache._PAUSE", 0.001)
    server.stop()
    async with replicas(server) as (first, second):
        assert await first.find() == "Free"
        await asyncio.to_thread(server.start)
        await first.wait_for(Purge())
        assert first.directory.get_cached(QUERY) is None
        outage = "purges of other processes are not received: the server"
        assert caplog.text.count(outage) == 2
        await second.wait_for(Purge())
        await asyncio.to_thread(server.stop)
        await until(lambda: caplog.text.count(outage) == 4)


OPTIONS = {"kind": "redis", "url": "redis://h", "secret": SECRET}


@pytest.mark.parametrize(
    "options",
    [{"secret": "canary"}, {"url": f"http://{PASSWORD}"}, {"cluster": "true"}, {"timeout": "2s"}],
    ids=["short secret", "url", "cluster", "timeout"],
)
def test_invalid_options_are_rejected_without_secrets(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        RedisCacheOptions.model_validate(OPTIONS | options)
    assert "canary" not in str(caught.value)


def test_a_shared_cache_and_its_failure_are_shown_to_the_operator(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke
) -> None:
    monkeypatch.setattr("tornado_idv.features.shared_cache.tier._PURGE_PAUSE", 0.05)
    monkeypatch.setattr("tornado_idv.features.shared_cache.tier._PURGE_TIMEOUT", 0.1)
    # No lookup is a probe, however long the test takes.
    stays_open = BreakerOptions(open_for=60.0, open_max=60.0)
    monkeypatch.setattr("tornado_idv.features.shared_cache.tier._BREAKER", stays_open)
    options = f"{{kind: redis, url: '{server.url}', secret: {SECRET}, timeout: 1s}}"
    text = f"shared_cache: {options}\nadmin: {{port: 0}}\n{CONFIG}{USERS}"
    with serving(text, tmp_path) as service:
        assert Client(service.port).by_input("@user8").status == 404
        eventually(lambda: scrape(service)("idv_shared_cache_stores_total", result="ok") == 1)
        assert scrape(service)("idv_shared_cache_lookups_total", result="miss") == 1
    with serving(text, tmp_path) as service:
        client = Client(service.port)
        assert client.by_input("@user8").status == 404
        assert scrape(service)("idv_cache_lookups_total", result="shared") == 1
        assert scrape(service)("idv_shared_cache_lookups_total", result="hit") == 1
        assert scrape(service)("idv_shared_cache_duration_seconds_count") == 1
        server.stop()
        assert {client.by_input(f"@user{number}").status for number in range(7)} == {404}
        value = scrape(service)
        assert value("idv_shared_cache_lookups_total", result="failed") == 5
        assert value("idv_shared_cache_lookups_total", result="skipped") == 2
        assert value("idv_shared_cache_breaker_state") == 2
        assert value("idv_degraded", part="shared cache") == 1
        reply = ask_admin(service, "/cache/purge", {"all": True})
        assert (reply.status, reply.json["code"]) == (503, "purge_pending")
        eventually(lambda: scrape(service)("idv_shared_cache_purges_total", result="failed") > 0)
        shown = ask_admin(service, "/status.json").json["shared_cache"]
        assert (shown["breaker"], shown["pending_purges"], shown["in_flight"]) == ("open", 1, 1)
        assert shown["problem"] == "a purge cannot be delivered"
        assert "cannot be reached" in shown["last_error"]
        assert shown["latency_ms"]["p50"] is None
        admin = f"admin: {{port: {str(service.admin_url).rpartition(':')[2]}}}"
        (tmp_path / "used.yaml").write_text(text.replace("admin: {port: 0}", admin))
        done = invoke("cache", "purge", "--all", "--config", tmp_path / "used.yaml")
        assert (done.exit_code, done.stdout) == (3, "")
        assert "Purged here, but the shared cache has not received the purge" in done.stderr
        lines = invoke("status", "--config", tmp_path / "used.yaml").stdout.splitlines()
        (line,) = [each for each in lines if each.startswith("shared cache: redis: failing since")]
        assert "1 hits, 0 misses, 5 failed, 2 skipped; 0 purges delivered, 2 pending" in line
        server.start()
        eventually(lambda: scrape(service)("idv_shared_cache_purges_pending") == 0)
        assert scrape(service)("idv_shared_cache_purges_total", result="ok") == 2
