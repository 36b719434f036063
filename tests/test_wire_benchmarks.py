"""The benchmarks over HTTP send the documented traffic, and skip what is not installed."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.progress import Progress

from benchmarks import ldap, postgres, postgres_server, redis_server, scale, shared_cache, workers
from benchmarks.figures import Target
from benchmarks.plan import Plan
from benchmarks.wire import (
    attack,
    attackers,
    conformance,
    contenders,
    growth,
    misses,
    proxy,
    start,
    traffic,
    uncached,
    wrk,
)
from benchmarks.wire.contenders import Contender
from benchmarks.wire.process import Server, post
from support.processes.benchmark_processes import forked
from support.processes.process import command
from support.processes.proxies import not_installed

pytestmark = [pytest.mark.slow, pytest.mark.ci]

ROOT = Path(__file__).parents[1]
USERS = 50
needs_wrk = pytest.mark.skipif(shutil.which("wrk") is None, reason=not_installed("wrk"))


NEED_WRK = (
    *("throughput", "workers", "mixes", "latency", "attack", "uncached", "misses", "growth"),
    *("proxy", "postgres", "shared_cache"),
)


@pytest.fixture(scope="module", autouse=True)
def toy_size() -> Iterator[None]:
    """Send few different requests on few connections, and fork modules of Python."""
    with pytest.MonkeyPatch.context() as patch, forked():
        patch.setattr(traffic, "_LIST_LENGTH", 20 * USERS)
        patch.setattr(traffic, "_MAX_RATE", 20 * USERS)
        patch.setattr(wrk, "CONNECTIONS", 4)
        patch.setattr(growth, "_KEYS", 4)
        yield


@pytest.fixture
def few_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """End each run of wrk after a hundred responses."""
    script = tmp_path / "few.lua"
    script.write_text(FEW_REQUESTS.format(wrk._SCRIPT), encoding="utf-8")
    monkeypatch.setattr(wrk, "_SCRIPT", script)


FEW_REQUESTS = """\
dofile("{}")
local count = 0
function response()
   count = count + 1
   if count == 100 then
      wrk.thread:stop()
      -- Wakes the main thread, which reports.
      os.execute("(sleep 0.1; kill -INT $PPID 2>/dev/null) &")
   end
end
"""


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """The plan of a run at toy size: one short round, without warm-up and peers."""
    core = min(os.sched_getaffinity(0))
    progress = Progress(disable=True)
    peers = Path("/no/python")
    return Plan(USERS, (USERS,), 1, tmp_path, progress, 0.05, core, peers, warm_up=False)


def report_without_wrk(tmp_path: Path) -> Any:
    """Run ``python -m benchmarks`` at toy size, without wrk and peers; return its report."""
    file = tmp_path / "report.json"
    toy = (f"--keys={USERS}", f"--users={USERS}", "--rounds=1", "--seconds=1", "--peers=/no/python")
    only = (f"--only={name}" for name in NEED_WRK)
    arguments = (*toy, *only, f"--json={file}")
    done = command(*arguments, module="benchmarks", cwd=ROOT, env={"PATH": "/no/where"})
    assert done.returncode == 0, done.stderr
    return json.loads(file.read_text(encoding="utf-8"))


def inputs(mix: traffic.Mix) -> list[str]:
    """Return the inputs in the bodies of a run."""
    return [json.loads(body)["input"] for body in mix(USERS, 1).bodies]


def test_zipf_traffic_contains_the_first_user_about_twice_as_often_as_the_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(traffic, "_LIST_LENGTH", 100_000)
    (_, first), (_, second), *_ = Counter(traffic.zipf(USERS, 1).bodies).most_common()
    assert first / second == pytest.approx(2**1.1, rel=0.05)


def test_never_repeating_traffic_does_not_repeat_in_the_next_run() -> None:
    texts = inputs(traffic.never_repeating) + inputs(traffic.never_repeating)
    assert len(set(texts)) == len(texts)


async def test_ours_and_our_handlers_on_tornado_conform(plan: Plan) -> None:
    """All contenders that need no installation; each mix gets the responses that it is for."""
    sides = contenders.all_contenders(plan)
    sides.pop(contenders.NGINX, None)  # it may not be installed
    async with contenders.run_all(plan, sides) as servers:
        assert set(servers) == {contenders.OURS, contenders.WITHOUT_FAST_PATH, contenders.TORNADO}
        for server in servers.values():
            assert server.start > 0
            assert server.cpu() > 0
            assert server.resident() > 1
        assert set(plan.skipped) >= {contenders.FASTAPI, contenders.ASGI}
        for mix in traffic.MIXES.values():
            made = mix(USERS, 1)
            key = traffic.KEY if traffic.KEY.encode() in made.head else "k" * 16
            reply = await asyncio.to_thread(
                post, servers[contenders.OURS].port, made.bodies[0], key
            )
            assert reply[0] == made.status


async def test_a_server_with_other_responses_is_an_error(plan: Plan) -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{"status":"no"}')
        writer.close()

    async with await asyncio.start_server(respond, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        other = Server("another", port, os.getpid(), 0)
        with pytest.raises(RuntimeError, match=r"another responds to .* with 200"):
            await asyncio.to_thread(conformance.check, other, USERS)


async def test_a_server_that_exits_is_an_error_with_its_output(plan: Plan) -> None:
    side = Contender(lambda _port: [sys.executable, "-c", "raise SystemExit('no such thing')"])
    with pytest.raises(RuntimeError, match="no such thing"):
        async with contenders.run_contender(plan, "another", side):
            pass


async def test_start_is_measured_without_wrk_nginx_or_peers(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/no/where")
    figures = await start.cold_start(plan)
    assert {each.of for each in figures} >= {contenders.OURS, contenders.TORNADO}
    assert "make bench" in plan.skipped[contenders.FASTAPI]


def test_without_wrk_the_report_says_what_to_install(tmp_path: Path) -> None:
    result = report_without_wrk(tmp_path)
    assert result["figures"] == []
    for name in NEED_WRK:
        assert "apt-get install wrk" in result["skipped"][name]


@needs_wrk
@pytest.mark.usefixtures("few_requests")
@pytest.mark.parametrize(
    ("benchmark", "missing", "sides", "target"),
    [
        (uncached.uncached, None, None, None),
        (misses.misses, postgres_server.missing(), None, None),
        (postgres.postgres, postgres_server.missing(), {postgres.OURS, postgres.BARE}, 0.6),
        (proxy.proxied, None, {proxy.OURS, proxy.BARE}, 0.5),
    ],
    ids=["uncached", "misses", "postgres", "proxy"],
)
async def test_responses_under_load_are_counted(
    plan: Plan, benchmark: Any, missing: str | None, sides: set[str] | None, target: float | None
) -> None:
    if missing is not None:
        pytest.skip(missing)
    figures = await benchmark(plan)
    measured = {each.of for each in figures if each.of}
    assert measured == sides if sides else len(measured) == 3
    assert [each.target for each in figures if each.target] == (
        [Target("least", target)] if target else []
    )
    assert all(each.value >= 0 for each in figures)


@needs_wrk
@pytest.mark.usefixtures("few_requests")
async def test_workers_are_measured_with_all_their_processes(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Server, "cpu", lambda _: time.perf_counter())  # in so few, no tick
    figures = await workers.workers(plan)
    values = {(figure.what, figure.of): figure.value for figure in figures}
    assert values["gain of two workers, by CPU time", None] > 0
    assert values["responses", "2 of our processes"] > 0
    (memory,) = [each for each in figures if each.unit == "MiB"]
    assert all(1 < size < 200 for size in memory.rounds)
    assert len(memory.rounds) == 3  # with the manager


@needs_wrk
@pytest.mark.usefixtures("few_requests")
async def test_growth_is_measured_per_amount(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Server, "cpu", lambda _: time.perf_counter())  # in so few, no tick
    figures = await growth.growth(plan)
    assert all(each.value > 0 for each in figures if each.unit == "x")
    assert len([each for each in figures if each.unit == "x"]) == 9


async def test_lookups_in_openldap_are_measured_beside_python_ldap_alone(plan: Plan) -> None:
    if ldap.missing() is not None:
        pytest.skip(str(ldap.missing()))
    figures = await ldap.ldap(plan)
    assert [ldap.OURS in figure.what for figure in figures] == [True, False, True]
    assert figures[-1].target == Target("least", 0.5)
    assert all(figure.value > 0 for figure in figures)


needs_redis = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason=not_installed("redis-server")
)


@needs_wrk
@needs_redis
@pytest.mark.usefixtures("few_requests")
async def test_a_shared_cache_is_measured_with_a_server_and_without(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that starts reaches the backend less often where others have filled it."""
    monkeypatch.setattr(Server, "cpu", lambda _: time.perf_counter())  # in so few, no tick
    figures = await shared_cache.shared_cache(plan)
    alone, beside_another = (each.value for each in figures if each.unit == "of all")
    assert 0 < beside_another < alone / 2
    assert {each.what for each in figures if each.of} == {"responses", "CPU for 1,000"}
    assert len({each.of for each in figures if each.of}) == 4
    assert all(each.value > 0 for each in figures)


@needs_redis
async def test_processes_with_a_shared_tier_look_up_less_than_they_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale, "_CHECK_USERS", USERS)
    async with redis_server.running(tmp_path) as port:
        line = redis_server.shared_cache(port)
        _, shares = await scale.run_for_real(tmp_path, 2, 1.0, line)
    assert 0 < shares.backend < 1 - shares.hits


@needs_wrk
@pytest.mark.usefixtures("few_requests")
async def test_legitimate_clients_are_measured_during_each_attack(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attack keeps its connections open, few of them here; the server conforms afterwards."""
    monkeypatch.setattr(attack, "RAMP_UP", 0.2)
    monkeypatch.setattr(attack, "SCALE", 0.02)
    monkeypatch.setattr(attack, "_SHARE", 2.0)  # of what was measured with few requests
    monkeypatch.setattr(attack, "low_priority", lambda: ())
    async with asyncio.timeout(240):
        figures = await attack.attack(plan)
    with_target = [each.what for each in figures if each.target]
    assert len(with_target) == len(attackers.ATTACKS)
    assert all(name in what for name, what in zip(attackers.ATTACKS, with_target, strict=True))
    assert all(each.value >= 0 for each in figures)
