"""A reload switches everything at once, keeps what is unchanged, and loses no request."""

import asyncio
import gc
import logging
import resource
import ssl
import weakref
from contextlib import suppress
from pathlib import Path

import pytest
import trustme

from support.fakes.clock_and_backends import LoopClock
from support.http.http_server import until
from support.processes.reloads import GATED, A, B, Gated, config, reloadable
from support.processes.service import lookup_request, open_socket, post_request
from tornado_idv.admin.report import FAILED, INVALID, health
from tornado_idv.http.connection_table import HttpLimits
from tornado_idv.keys.token import issue
from tornado_idv.model import ByNickname
from tornado_idv.service import directories

OTHER_KEY = issue("other")
TWO = GATED % ("first", "A"), GATED % ("second", "A")
NEGATIVE = "negative_ttl: 20s, max_negative_entries: 7, failure_memo: 7ms"


async def settle() -> None:
    """Let what is due in the event loop happen."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_everything_is_switched_on_an_open_connection(tmp_path: Path) -> None:
    async with reloadable(tmp_path, config(A)) as harness, harness.connected() as client:
        for _ in range(3):  # the fast path serves the last
            before = await client.ask("@alice")
        assert (before.status, before.record["plan"]) == (200, "A")
        assert before.record["profile_url"] == "https://a.example/m/alice"
        new = config(B, site="https://b.example", key=OTHER_KEY, server="base_path: /b")
        assert (await harness.reload(new)).code is None
        assert (await client.ask("@alice")).record["code"] == "no_such_route"
        path = "/b/api/v1/identify/url"
        assert (await client.ask("@alice", path=path)).status == 401
        after = await client.ask("@alice", path=path, key=OTHER_KEY)
        assert (after.status, after.record["plan"]) == (200, "B")
        assert after.record["profile_url"] == "https://b.example/m/alice"


async def test_limits_of_the_listener_are_switched_on_an_open_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections above a lower limit stay open. At the start, it is that of descriptors."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (200, 200))
    async with (
        reloadable(tmp_path, config(server="fast_path: false")) as harness,
        harness.connected() as client,
    ):
        assert harness.service.server.connections.limits.max_connections == 8
        long = "@" + "a" * 50
        assert (await client.ask(long)).status == 200
        lower = "fast_path: false, max_body: 40B, max_connections: 1"
        await harness.reload(config(server=f"{lower}, idle_timeout: 7s, body_timeout: 3s"))
        limits = harness.service.server.connections.limits
        assert (limits.idle_timeout, limits.body_timeout) == (7.0, 3.0)
        assert (await harness.ask("@alice")).record["code"] == "overloaded"
        assert (await client.ask("@alice")).status == 200
        assert (await client.ask(long)).status == 413


@pytest.mark.parametrize(
    ("text", "code", "problem"),
    [
        ("bogus: 1\n", INVALID, "config.yaml:1:1: bogus: unknown setting"),
        (config("{name: users, kind: gated, opens: false}"), FAILED, "users does not open"),
        (config(more="identifiers: {nickname_pattern: '${file:absent}'}\n"), INVALID, "absent"),
        (config(server="tls: {cert_file: a, key_file: b}"), None, ""),
    ],
    ids=["setting", "backend", "reference", "no TLS"],
)
async def test_error_leaves_the_old_configuration_in_force(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, code: str | None, problem: str
) -> None:
    async with reloadable(tmp_path, config(A)) as harness, harness.connected() as client:
        await client.ask("@alice")
        with caplog.at_level(logging.INFO):
            result = await harness.reload(text)
        assert result.code == code
        assert problem in "\n".join(result.problems)
        assert (await client.ask("@alice")).record["plan"] == "A"
        assert (await client.ask("@bob")).record["plan"] == "A"
        if code is not None:
            assert harness.cached() == ["miss", "hit", "miss"]
            assert harness.service.settings.profile_sites == ("https://a.example",)
            (line,) = [each for each in caplog.records if each.levelno == logging.ERROR]
            assert line.getMessage().startswith("configuration not reloaded")
    assert not any(each.is_open for each in Gated.made)


async def test_unexpected_exception_leaves_the_old_configuration_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with reloadable(tmp_path, config(A)) as harness:
        with monkeypatch.context() as patch:
            patch.setattr("tornado_idv.service.service.TrustedProxies", lambda _: 1 / 0)
            result = await harness.reload(config(B, server="trusted_proxies: [127.0.0.1]"))
        assert result.problems == ("unhandled exception: ZeroDivisionError",)
        assert (await harness.ask("@alice")).record["plan"] == "A"
        assert [each.is_open for each in Gated.made] == [True, False]
        assert (await harness.reload(config(B))).code is None


@pytest.mark.parametrize("field", [b"", b"X-IDV-Past-Cache: 1\r\n"], ids=["", "past the cache"])
async def test_request_in_flight_ends_in_its_configuration(tmp_path: Path, field: bytes) -> None:
    """The connection stays open, and its next request is in the new one."""
    new = config(B, site="https://b.example")
    async with reloadable(tmp_path, config(A)) as harness, harness.connected() as client:
        old = await harness.held(client, field=field)
        await harness.reload(new)
        await settle()
        other = await harness.ask("@alice")
        assert other.record["plan"] == "B"
        assert other.record["profile_url"] == "https://b.example/m/alice"
        assert old.is_open
        old.gate.set()
        response = await client.read()
        assert (response.status, response.record["plan"]) == (200, "A")
        assert response.record["profile_url"] == "https://a.example/m/alice"
        response = await client.ask("@alice")
        assert (response.status, response.record["plan"]) == (200, "B")
        await settle()
        assert [each.is_open for each in Gated.made] == [False, True]


async def test_user_who_is_not_found_past_the_cache_is_dropped_from_it(tmp_path: Path) -> None:
    """So no later response has the user, fresh or stale."""
    async with reloadable(tmp_path, config(A)) as harness, harness.connected() as client:
        assert (await harness.ask("@alice")).status == 200
        (users,) = Gated.made
        users.name = "alice"  # it knows no nickname with this beginning
        past = lookup_request("@alice").replace(b"Host:", b"X-IDV-Past-Cache: 1\r\nHost:")
        client.writer.write(past)
        assert (await client.read()).status == 404
        users.down = True
        assert (await harness.ask("@alice")).status == 503


async def test_batch_that_pauses_completes_in_its_configuration(tmp_path: Path) -> None:
    """No lookup of it is running at this time."""
    async with reloadable(tmp_path, config(A)) as harness, harness.connected() as client:
        (old,), directory = Gated.made, harness.service.directories.current
        async with directory.batch_turn:
            items = [{"input": f"@{letter}"} for letter in "abcdefghijklmnopqrst"]
            client.writer.write(post_request("/api/v1/identify/batch", {"items": items}))
            await until(lambda: old.asked == 16 and not directory.batch_slots.in_use)
            await harness.reload(config(B))
            await settle()
        results = (await client.read()).record["results"]
        assert [each.get("plan") for each in results] == ["A"] * 20
        await until(lambda: not old.is_open)


async def test_fast_path_learns_nothing_from_a_request_before_the_reload(tmp_path: Path) -> None:
    async with reloadable(tmp_path, config(A)) as harness, harness.connected() as client:
        old = await harness.held(client)
        await harness.reload(config(B, server="base_path: /b"))
        old.gate.set()
        assert (await client.read()).status == 200
        for _ in range(3):
            path = "/b/api/v1/identify/url"
            assert (await harness.ask("@alice", path=path)).record["plan"] == "B"
        assert (await client.ask("@alice")).record["code"] == "no_such_route"


async def test_removed_backend_is_closed_after_the_last_lookup_of_any_earlier_configuration(
    tmp_path: Path,
) -> None:
    """The first directory still uses the second backend when the third has removed it."""
    async with reloadable(tmp_path, config(*TWO)) as harness:
        first, second = Gated.made
        async with harness.connected() as client:
            await harness.held(client, "@firstly")
            await harness.reload(config(TWO[1]))
            await harness.reload(config(A))
            await settle()
            assert (first.is_open, second.is_open) == (True, True)
            first.gate.set()
            assert (await client.read()).status == 200
        await settle()
        assert (first.is_open, second.is_open) == (False, False)


async def test_lookup_that_does_not_end_delays_the_close_for_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = "request_timeout: 100ms"

    async def ignore_cancellation(backend: Gated, _: object) -> None:
        while backend.is_open:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)

    monkeypatch.setattr(Gated, "find", ignore_cancellation)
    async with reloadable(tmp_path, config(A, server=short)) as harness:
        (old,) = Gated.made
        assert (await harness.ask("@alice")).status == 503
        await harness.reload(config(B, server=short))
        await settle()
        assert old.is_open
        LoopClock().forward(2.2)
        await until(lambda: not old.is_open)


async def test_stop_waits_until_a_removed_backend_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not for its lookups."""
    long = config("{name: users, kind: gated, timeout: 60s}", server="request_timeout: 60s")
    async with asyncio.timeout(10), reloadable(tmp_path, long) as harness:
        (old,) = Gated.made
        old.gate.clear()
        finding = asyncio.create_task(harness.service.directories.current.find(ByNickname("alice")))
        await old.begun.wait()
        close = old.close

        async def close_slowly() -> None:
            await asyncio.sleep(0.2)
            await close()

        monkeypatch.setattr(old, "close", close_slowly)
        await harness.reload(config(B))
    assert not old.is_open
    finding.cancel()


async def test_stop_ends_a_reload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with reloadable(tmp_path, config(A)) as harness:
        monkeypatch.setattr(Gated, "open", lambda _: asyncio.sleep(60))
        harness.write(config(B))
        reload = harness.service.reloader.start("test")
        await until(lambda: len(Gated.made) == 2)
    assert reload.cancelled()


async def test_stop_cancels_the_lookup_of_a_canary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Gated, "find", lambda *_: asyncio.sleep(60))
    text = config("{name: a, kind: gated, canary: {nickname: '@a'}}")
    async with reloadable(tmp_path, text) as harness:
        await settle()
        (canary,) = harness.service.directories.current.canaries
        assert (task := canary.task) is not None
    await settle()
    assert task.cancelled()


async def test_unchanged_backend_stays_open_with_its_circuit_breaker_and_answers(
    tmp_path: Path,
) -> None:
    breaker = "{name: users, kind: gated, password: a, breaker: {failures: 1, open_for: 1h}}"
    other = GATED % ("other", "A")
    async with reloadable(tmp_path, config(breaker)) as harness:
        (backend,) = Gated.made
        assert (await harness.ask("@alice")).status == 200
        backend.down = True
        assert (await harness.ask("@bob")).status == 503
        await harness.reload(config(breaker, other))
        assert [each.name for each in Gated.made] == ["users", "other"]
        assert harness.service.directories.current.guards[0].breaker.state == "open"
        assert (await harness.ask("@alice")).status == 200
        assert harness.cached() == ["miss", "miss", "hit"]
        assert (await harness.ask("@carol")).status == 503
        assert backend.asked == 2
        await harness.reload(config(breaker.replace("word: a", "word: b")))
        assert [each.name for each in Gated.made[2:]] == ["users"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (config(*TWO, server="base_path: ''", more="limits: {requests: 9/s}\n"), ["hit"] * 3),
        (config(TWO[0], GATED % ("second", "B")), ["hit", "miss", "miss"]),
        (config(GATED % ("first", "B"), TWO[1]), ["miss", "miss", "miss"]),
        (config(*TWO, A), ["hit", "hit", "miss"]),
        (config(TWO[1], TWO[0]), ["miss", "miss", "miss"]),
        (config(*TWO, server="request_timeout: 1s"), ["hit", "hit", "miss"]),
        (config(*TWO, more=f"cache: {{{NEGATIVE}}}\n"), ["hit", "hit", "miss"]),
        (config(*TWO, more="cache: {ttl: 4m}\n"), ["miss", "miss", "miss"]),
        (config(*TWO, site="https://b.example"), ["miss", "miss", "miss"]),
        (config(*TWO, more="identifiers: {card_length: [1, 9]}\n"), ["miss", "miss", "miss"]),
    ],
    ids=[
        "limits", "the second backend", "the first backend", "a third backend",
        "the order", "the timeout", "negative TTL", "TTL", "profile site", "identifiers",
    ],
)  # fmt: skip
async def test_answers_stay_cached_where_they_are_certainly_right(
    tmp_path: Path, text: str, expected: list[str]
) -> None:
    """Of the first backend, of the second, and not found; by what was changed."""
    async with reloadable(tmp_path, config(*TWO)) as harness:
        for _ in range(2):
            for name in ("@alice", "@first", "@X"):
                await harness.ask(name)
        assert harness.cached() == ["miss"] * 3 + ["hit"] * 3
        assert (await harness.reload(text)).code is None
        for name in ("@alice", "@first", "@X"):
            await harness.ask(name)
        assert harness.cached()[6:] == expected


async def test_change_of_a_kept_backend_purges_the_new_cache(tmp_path: Path) -> None:
    async with reloadable(tmp_path, config(*TWO)) as harness:
        await harness.ask("@alice")
        await harness.reload(config(*TWO, "{name: bad, kind: gated, opens: false}"))
        Gated.made[0].notify_changed()
        await harness.ask("@alice")
        await harness.reload(config(TWO[0], A))
        await harness.ask("@alice")
        Gated.made[0].notify_changed()
        await harness.ask("@alice")
    assert harness.cached() == ["miss", "miss", "hit", "miss"]


async def test_lookup_in_flight_may_end_with_a_stale_answer(tmp_path: Path) -> None:
    """Rather than with the 503 that a reload would cause."""
    text = config(A, more="cache: {ttl: 0s}\n")
    async with reloadable(tmp_path, text) as harness, harness.connected() as client:
        assert (await client.ask("@alice")).status == 200
        Gated.made[0].down = True
        old = await harness.held(client)
        await harness.reload(config(A, B.replace("users", "b"), more="cache: {ttl: 0s}\n"))
        old.gate.set()
        assert (await client.read()).record["plan"] == "A"
        await harness.reload(config(B, more="cache: {ttl: 0s}\n"))
        assert (await client.ask("@alice")).record["plan"] == "B"


async def test_reload_refills_no_budget(tmp_path: Path) -> None:
    limits = "limits: {requests: 2/hour, failed_auth: 1/hour}\n"
    async with reloadable(tmp_path, config(A, more=limits)) as harness:
        statuses = [(await harness.ask("@alice")).status for _ in range(3)]
        statuses += [(await harness.ask("@alice", key="x" * 20)).status for _ in range(2)]
        assert statuses == [200, 200, 429, 401, 429]
        await harness.reload(config(B, site="https://b.example", more=limits))
        assert (await harness.ask("@alice")).status == 429
        assert (await harness.ask("@alice", key="x" * 20)).status == 429
        raised = "limits: {requests: 100/second, failed_auth: 9/hour}\n"
        await harness.reload(config(B, more=raised))
        statuses = [(await harness.ask("@alice", key="x" * 20)).status for _ in range(2)]
        assert statuses == [401, 401]
        assert (await harness.ask("@alice")).status == 429
        await asyncio.sleep(0.02)  # it waits for one interval of the new limit, from its first use
        assert (await harness.ask("@alice")).status == 200


async def test_limits_of_connections_are_those_of_the_settings(tmp_path: Path) -> None:
    """And the drain of an idle service needs no time."""
    server = "max_body: 19B, idle_timeout: 7s, body_timeout: 6s, drain: {timeout: 0s}"
    async with reloadable(tmp_path, config(A)) as harness:
        await harness.reload(config(A, server=server))
        names = ["@alicia", *["@alice"] * 3, "@alicia"]
        assert [(await harness.ask(each)).status for each in names] == [413, *[200] * 3, 413]
        limits = harness.service.server.connections.limits
        assert limits == HttpLimits(19, 7.0, body_timeout=6.0)
        assert await harness.service.drain(delay=False)


async def test_settings_that_need_a_restart_are_listed_each_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changed = config(B, server="host: 127.0.0.2", more="logging: {level: debug}\n")
    changed = changed.replace("admin: {port: 0}\n", "")
    async with reloadable(tmp_path, config(A)) as harness:
        for _ in range(2):
            result = await harness.reload(changed)
            assert result.code is None
            assert set(result.needs_restart) == {"server.host", "admin", "logging.level"}
            (line,) = [each for each in caplog.records if "after a restart" in each.msg]
            assert line.levelno == logging.WARNING
            caplog.clear()
        assert (await harness.ask("@alice")).record["plan"] == "B"
        (tmp_path / "users.yaml").write_text("users: []")
        other_kind = config("{name: users, kind: yaml, path: users.yaml}", server="docs: true")
        assert (await harness.reload(other_kind)).needs_restart == ()


async def test_refreshes_that_wait_at_the_stop_begin_no_lookup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backends are closed by then."""
    async with reloadable(tmp_path, config(A)) as harness:
        directory, queries = harness.service.directories.current, [*map(ByNickname, "abcdef")]
        for query in queries:
            await directory.find(query)
        (users,) = Gated.made
        users.gate.clear()
        timer = directory.cache.timer
        monkeypatch.setattr(directory.cache, "timer", lambda: timer() + 250)
        for query in queries:
            assert directory.get_cached(query) is not None
        await settle()
        assert users.asked == len(queries) + 4
    users.gate.set()
    await settle()
    assert users.asked == len(queries) + 4


def is_trusted(port: int, authority: trustme.CA) -> bool:
    """Return whether the certificate of the service is of this authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # without the authorities of the system
    authority.configure_trust(context)
    try:
        with open_socket(port) as sock, context.wrap_socket(sock, server_hostname="localhost"):
            return True
    except ssl.SSLCertVerificationError:
        return False


async def test_certificate_is_read_again(tmp_path: Path) -> None:
    """Also if only its file has changed, while files are watched."""
    first, second = trustme.CA(), trustme.CA()
    pem, key, other = (tmp_path / f"{name}.pem" for name in ("tls", "key", "other"))
    first.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(pem)
    key.write_bytes(pem.read_bytes())
    text = config(A, server="tls: {cert_file: tls.pem, key_file: key.pem}")
    async with reloadable(tmp_path, text) as harness:
        reloader, port = harness.service.reloader, harness.service.port
        pem.write_text(pem.read_text()[:500])
        result = await harness.reload()
        assert (result.code, "cannot be used for TLS" in result.problems[0]) == (FAILED, True)
        assert await asyncio.to_thread(is_trusted, port, first)
        second.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(pem)
        for authority in (first, second):
            for _ in range(2):
                await reloader.poll()
            assert await asyncio.to_thread(is_trusted, port, authority)
            key.write_bytes(pem.read_bytes())  # by now, it is the key of the second
        other.write_bytes(pem.read_bytes())
        assert (await harness.reload(text.replace("tls.pem", "other.pem"))).needs_restart == ()
        for each in (pem, other):
            each.unlink()
        assert (await harness.reload(config(A))).needs_restart == ("server.tls",)


async def test_replaced_directory_is_freed_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 300,000 users in a fixture, the interpreter's own collections are too rare."""
    monkeypatch.setattr("tornado_idv.service.service._COLLECT_AFTER", 0.2)
    quick = "request_timeout: 100ms"  # for so long a lookup is kept that has ended
    async with reloadable(tmp_path, config(A, server=quick)) as harness:
        assert (await harness.ask("@alice")).status == 200
        replaced = [weakref.ref(harness.service.directories.current), weakref.ref(Gated.made[0])]
        Gated.made.clear()
        gc.disable()
        try:
            await harness.reload(config(B, server=quick))
            await until(lambda: not any(each() for each in replaced))
        finally:
            gc.enable()


async def test_cache_of_the_first_directory_is_freed(tmp_path: Path) -> None:
    """A process excludes what it starts with from garbage collection; that has many answers."""
    quick = "request_timeout: 100ms"
    async with reloadable(tmp_path, config(A, server=quick)) as harness:
        gc.freeze()  # as `tune_gc` does
        try:
            assert (await harness.ask("@alice")).status == 200
            first = harness.service.directories.current.cache
            assert first.sizes == {"found": 1, "negative": 0}
            await harness.reload(config(B, server=quick))
            await until(lambda: first.sizes["found"] == 0)
        finally:
            gc.unfreeze()


async def test_readiness_does_not_flicker(tmp_path: Path) -> None:
    """A backend that failed is not reported as failing after it was replaced."""
    async with reloadable(tmp_path, config(A)) as harness:
        service = harness.service
        Gated.made[0].down = True
        await harness.ask("@alice")
        assert health(await service.report(), verbose=False)["status"] == "degraded"
        await harness.reload(config(B))
        assert health(await service.report(), verbose=False) == {"status": "ready", "degraded": []}


async def test_source_that_changes_while_a_backend_opens_is_opened_by_the_next_reload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A secret in a file selects it. Otherwise answers of both would be mixed."""
    selected = iter([b"one"])

    async def open_late(backend: Gated) -> None:
        next(selected, None)
        backend.is_open = True

    monkeypatch.setattr(Gated, "open", open_late)
    monkeypatch.setattr(directories, "identity_of", lambda *_: bytes([selected.__length_hint__()]))
    async with reloadable(tmp_path, config(A)) as harness:
        for opened in (2, 2):
            assert (await harness.reload()).code is None
            assert len(Gated.made) == opened
