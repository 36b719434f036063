"""The Redis backend: conformance, its start, and what it does while its server fails."""

import asyncio
import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trustme
from pydantic import ValidationError
from redis.exceptions import MasterDownError, NoPermissionError, OutOfMemoryError, ResponseError
from redis.exceptions import TimeoutError as ReadTimeoutError

import idv_redis
from idv_redis.backend import RedisBackend
from idv_redis.client import to_lookup_failed
from idv_redis.options import NOT_INSTALLED, RedisCacheOptions
from idv_redis.shared_cache import RedisSharedCache
from support.databases.redis_server import (
    ALICE,
    BOB,
    PASSWORD,
    RedisServer,
    running_sentinel,
    running_server,
)
from support.fakes.outcomes import outcome
from support.processes.ports import free_port
from tornado_idv import (
    Broken,
    ByCard,
    ByNickname,
    LookupFailed,
    Query,
    StartError,
    Step,
    Unavailable,
    User,
    yaml_loader,
)
from tornado_idv.interfaces.backend import AnyBackend
from tornado_idv.kit.testing import BackendConformance, MakeBackend, make_backend
from tornado_idv.registry import opened_backend

pytestmark = pytest.mark.slow

UNREACHABLE = "redis://127.0.0.1:1"
UNREACHED = "unavailable: the server cannot be reached, or closed the connection"


@pytest.fixture(autouse=True)
def users(server: RedisServer) -> None:
    server.write(ALICE, BOB)


def backend_of(server: RedisServer | str, **options: Any) -> Any:
    url = server if isinstance(server, str) else server.url
    return make_backend(RedisBackend, Path(), **{"url": url, **options})


class TestConformance(BackendConformance):
    holds_duplicates = False
    holds_at = False
    folds_stored = False

    @pytest.fixture
    def make_backend(self, server: RedisServer) -> MakeBackend:
        def make(users: Sequence[User]) -> AnyBackend:
            server.write(*users, prefix="{idv}:")
            return backend_of(server, prefix="{idv}:", timeout="5s")

        return make

    @pytest.fixture
    def failing_backend(self) -> AnyBackend:
        return backend_of(UNREACHABLE)


def test_a_missing_library_is_reported_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("client", "errors"):
        monkeypatch.delitem(sys.modules, f"idv_redis.{name}", raising=False)
        monkeypatch.delattr(idv_redis, name, raising=False)
    for name in [each for each in sys.modules if each.partition(".")[0] == "redis"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(StartError, match=re.escape(NOT_INSTALLED)):
        backend_of(UNREACHABLE)
    given = {"kind": "redis", "url": UNREACHABLE, "secret": "s" * 32}
    with pytest.raises(StartError, match=re.escape(f"shared_cache: {NOT_INSTALLED}")):
        RedisSharedCache(RedisCacheOptions.model_validate(given))


@pytest.mark.parametrize(
    "options",
    [
        {"url": f"http://:{PASSWORD}@h"},
        {"url": f"redis://:{PASSWORD}@h:0"},
        {"sentinels": ["redis://s1:26379"]},
        {"service": "members"},
        {"sentinels": [f"s1:{PASSWORD}"], "service": "members"},
        {"cluster": "true", "sentinels": ["redis://s"], "service": "m"},
        {"cluster": "true", "prefix": "{idv}:"},
        {"pool_size": "0"},
    ],
    ids=str,
)
def test_invalid_options_are_rejected_without_the_password(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError) as caught:
        make_backend(RedisBackend, tmp_path, **{"url": UNREACHABLE, **options})
    assert PASSWORD not in str(caught.value)


async def test_a_wrong_password_stops_the_start_and_is_not_shown(server: RedisServer) -> None:
    server.run("CONFIG", "SET", "requirepass", "another")
    try:
        for url in (server.url, server.url.replace("//", f"//:{PASSWORD}@")):
            backend = backend_of(url)
            with pytest.raises(StartError, match="refuses the user or password in the url") as at:
                await backend.open()
            for text in (str(at.value), repr(backend.options), repr(vars(backend))):
                assert PASSWORD not in text
    finally:
        server.stop()


async def test_a_password_that_is_changed_in_its_file_is_used(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tornado_idv.files.FileSecret.check_interval", 0.0)
    secret = yaml_loader.FileText(server.url)
    secret.path = tmp_path / "url"
    secret.path.write_text(server.url)
    async with opened_backend(backend_of(server, url=secret)) as backend:
        assert await outcome(backend) == "found"
        server.run("CONFIG", "SET", "requirepass", PASSWORD)
        server.run("AUTH", PASSWORD)
        secret.path.write_text(server.url.replace("//", "//:wrong@"))
        assert (
            await outcome(backend) == "broken: the server refuses the user or password in the url"
        )
        for other in ("mysql://canary", f"redis://:{PASSWORD}@127.0.0.1:{server.port}/1"):
            secret.path.write_text(other)
            assert "the server refuses the user or password" in await outcome(backend)
        secret.path.write_text(server.url.replace("//", f"//:{PASSWORD}@"))
        assert await outcome(backend) == "found"
    server.stop()


async def test_an_evicted_user_is_unavailable_until_all_are_loaded_again(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The policy may change after the start, as with a failover: it is not replicated."""
    async with opened_backend(backend_of(server)) as backend:
        assert await outcome(backend, ByNickname("carol")) == "not found"
        server.run("CONFIG", "SET", "maxmemory-policy", "allkeys-lru", "maxmemory", "1")
        server.wait_for(b"$-1", "GET", "ready")
        server.run("CONFIG", "SET", "maxmemory", "0")
        server.run("SET", "ready", "1")
        server.run("CONFIG", "SET", "maxmemory-policy", "noeviction")
        assert (await outcome(backend)).startswith("unavailable: the server has evicted keys, and")
        assert "evicted keys" not in caplog.text
        async with opened_backend(backend_of(server)):
            assert "the server has evicted keys, and users may be among them" in caplog.text
        server.write(ALICE)
        assert await outcome(backend) == "found"
        server.run("CONFIG", "RESETSTAT")
        assert await outcome(backend, ByNickname("carol")) == "not found"


NICKNAME, CARD = ByNickname("alice"), ByCard(ALICE.card_number)
ANOTHER_CARD = "the key of a card number names a user with another card number"
NO_RIGHT = "the user in the url may not run a command or read a key; see ACL"
BROKEN: dict[str, tuple[tuple[str | bytes, ...], Query, str]] = {
    "user of another type": (
        ("SET", "user:carol", "x"),
        ByNickname("carol"),
        "a key has an unexpected type",
    ),
    "empty plan": (("HSET", "user:alice", "plan", ""), NICKNAME, "the hash of a user has no plan"),
    "another user": (
        ("HSET", "user:alice", "nickname", "bob"),
        NICKNAME,
        "the nickname in the hash of a user differs from the key",
    ),
    "user in other case": (
        ("HSET", "user:alice", "nickname", "Alice"),
        NICKNAME,
        "the nickname in the hash of a user differs from the key",
    ),
    "card of another user": (("SET", f"card:{ALICE.card_number}", "bob"), CARD, ANOTHER_CARD),
    "card of a missing user": (("SET", "card:77", "carol"), ByCard("77"), ANOTHER_CARD),
    "no UTF-8": (("HSET", "user:alice", "plan", b"\xff"), NICKNAME, "a value is not valid UTF-8"),
    "no permission": (("ACL", "SETUSER", "default", "-hgetall"), NICKNAME, NO_RIGHT),
}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("the handler is closed"), (Unavailable, False)),  # of uvloop
        (ConnectionResetError(), (Unavailable, False)),
        (ResponseError("BUSY Redis is busy running a script."), (Unavailable, True)),
        (OutOfMemoryError("used memory > 'maxmemory'."), (Unavailable, False)),
        (MasterDownError("Link with MASTER is down"), (Unavailable, False)),
        (ReadTimeoutError("no reply"), (Unavailable, True)),
        (NoPermissionError("NOPERM"), (Broken, True)),
        (TypeError("unexpected argument canary"), (Broken, True)),  # for a part of the url
        (ResponseError("ERR unknown command"), (Broken, True)),
    ],
)
def test_error_that_passes_is_no_defect_and_a_response_counts_for_the_circuit_breaker(
    error: Exception, expected: tuple[type[LookupFailed], bool]
) -> None:
    """An error that the server sends resets the number of failures, and ends a probe."""
    failure = to_lookup_failed(error)
    assert (type(failure), failure.counts_against_breaker) == expected
    assert "canary" not in failure.reason


@pytest.mark.parametrize(("command", "query", "reason"), list(BROKEN.values()), ids=list(BROKEN))
async def test_an_invalid_record_is_broken(
    server: RedisServer, command: tuple[str | bytes, ...], query: Query, reason: str
) -> None:
    async with opened_backend(backend_of(server)) as backend:
        assert not server.run(*command).startswith(b"-")
        try:
            assert await outcome(backend, query) == f"broken: {reason}"
        finally:
            server.run("ACL", "SETUSER", "default", "+@all")


async def test_commands_and_replies_are_explained(server: RedisServer) -> None:
    server.run("SET", "card:78", "carol")
    server.run("HSET", "user:carol", "nickname", "carol", "card_number", "78")
    steps: list[Step] = []
    async with opened_backend(backend_of(server)) as backend:
        with pytest.raises(Broken, match="has no plan"):
            await backend.explain(ByCard("78"), steps)
    assert steps == [
        Step("GET", b"carol", "card:78"),
        Step("HGETALL", {b"nickname": b"carol", b"card_number": b"78"}, "user:carol"),
    ]


async def test_folded_nicknames_are_found_by_keys_in_lower_case(
    server: RedisServer, tmp_path: Path
) -> None:
    server.run("HSET", "user:carol", "nickname", "CaroL", "card_number", "77", "plan", "Free")
    server.run("SET", "card:77", "CaroL")
    options = {"name": "tested", "kind": "tested", "url": server.url}
    parsed = RedisBackend.options_type.model_validate(options, context={"nickname_case": "fold"})
    async with opened_backend(RedisBackend(parsed)) as backend:
        for query in (ByNickname("carol"), ByCard("77")):
            assert await backend.find(query) == User("Free", "77", "CaroL")


async def test_lookups_share_the_connections_and_need_only_the_documented_rights(
    server: RedisServer,
) -> None:
    readme = Path("plugins/idv_redis/README.md").read_text()
    (rights,) = re.findall(r"^ACL SETUSER idv on .* ~ready .*$", readme, re.MULTILINE)
    server.run(*rights.replace("LONG-RANDOM-TEXT", PASSWORD).split())
    url = server.url.replace("//", f"//idv:{PASSWORD}@")
    async with opened_backend(backend_of(url, pool_size="3")) as backend:
        assert await outcome(backend, ByNickname("carol")) == "not found"
        before = server.accepted
        assert {*await asyncio.gather(*(outcome(backend) for _ in range(20)))} == {"found"}
        assert server.accepted - before <= 3 + 1  # one of them asks for the number


async def test_lookups_fail_while_the_server_restarts_and_recover(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It is empty then, and no user is "not known" before it is loaded again."""
    server.stop()
    async with opened_backend(backend_of(server, pool_size="3")) as backend:
        assert backend.servers == []
        assert [each.levelno for each in caplog.records] == [logging.ERROR]
        assert backend.problem is not None
        assert await outcome(backend) == UNREACHED
        for reason in ("the server cannot be reached", "the key ready is missing"):
            with pytest.raises(Unavailable, match=reason) as caught:
                await backend.find(ByCard("77"))
            assert not caught.value.counts_against_breaker
            if server.process is None:
                server.start()
                server.add(ALICE)
                server.run("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
                evicts = "broken: the server evicts keys"  # and may have evicted users
                assert (await outcome(backend, ByCard("77"))).startswith(evicts)
                assert await outcome(backend) == "found"
                server.run("CONFIG", "SET", "maxmemory-policy", "noeviction")
        server.write(ALICE)
        ended = await asyncio.gather(*(outcome(backend) for _ in range(8)))
        assert set(ended) == {"found"}
        assert await outcome(backend, ByCard("77")) == "not found"
        assert backend.problem is None


@pytest.mark.parametrize(
    ("ready", "appendonly", "warned_of"),
    [("1", "no", True), ("1", "yes", False), ("run_id", "no", False), ("", "no", False)],
)
async def test_server_that_may_lose_users_without_a_trace_is_warned_of(
    server: RedisServer,
    caplog: pytest.LogCaptureFixture,
    ready: str,
    appendonly: str,
    *,
    warned_of: bool,
) -> None:
    server.run("CONFIG", "SET", "appendonly", appendonly)
    server.run("SET", "ready", server.run_id if ready == "run_id" else ready)
    async with opened_backend(backend_of(server)):
        server.run("CONFIG", "SET", "appendonly", "no")
        text = "A restart may lose new users and keep the key ready. Then lookups of the lost users"
        assert (text in caplog.text) is warned_of


async def test_the_primary_and_its_database_are_found_by_the_sentinels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that hangs is given up within the timeout, and one that is a primary no more is left."""
    with running_server() as server, running_sentinel(server, "members") as sentinel:
        server.write(ALICE)
        server.run("SWAPDB", "0", "1")
        options = {
            "url": "redis://members/1",
            "sentinels": [UNREACHABLE, sentinel.url],
            "timeout": "200ms",
        }
        async with opened_backend(backend_of("", **options, service="others")) as other:
            assert (await outcome(other)).startswith(UNREACHED)
        async with opened_backend(backend_of("", **options, service="members")) as backend:
            assert await outcome(backend, ByNickname("carol")) == "not found"
            assert backend.servers == [(f"127.0.0.1:{server.port}", "primary")]
            server.pause()
            monkeypatch.setattr("idv_redis.backend._START_TIMEOUT", 0.1)
            try:
                with pytest.raises(Unavailable, match="the server did not respond in time"):
                    await backend.find(NICKNAME)
                async with opened_backend(backend_of(server, timeout="60s")) as hung:
                    assert hung.problem == "the server did not respond in time"
            finally:
                server.resume()
            sentinel.stop()
            # The connection of before is closed: a late reply may come on it.
            server.run("REPLICAOF", "127.0.0.1", "1")
            replica = "unavailable: the server is a replica, not the primary"
            assert await outcome(backend) == replica


async def test_the_certificate_of_the_server_is_verified(tmp_path: Path) -> None:
    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1")
    leaf.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    for name, each in {"right.pem": authority, "wrong.pem": trustme.CA()}.items():
        each.cert_pem.write_to_path(str(tmp_path / name))
    files = [f"--tls-{each}-file" for each in ("cert", "key", "ca-cert")]
    options = [part for each in files for part in (each, str(tmp_path / "server.pem"))]
    port = free_port()
    with running_server(*options, "--tls-auth-clients", "no", "--tls-port", str(port)) as server:
        server.write(ALICE)
        url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={tmp_path}/right.pem"
        for each, expected in {
            url: "found",
            url.replace("right", "wrong"): (
                "unavailable: the TLS handshake failed; see ssl_ca_certs of the url"
            ),
        }.items():
            async with opened_backend(backend_of(each)) as backend:
                assert await outcome(backend) == expected
