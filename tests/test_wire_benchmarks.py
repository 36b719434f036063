"""The benchmarks over HTTP send the documented traffic, and skip what is not installed."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.progress import Progress

from benchmarks import dataset
from benchmarks.plan import Plan
from benchmarks.wire import attack, attackers, conformance, contenders, proxy, traffic
from benchmarks.wire.contenders import Contender
from benchmarks.wire.process import Server, post

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
USERS = 50
needs_wrk = pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    core = min(os.sched_getaffinity(0))
    return Plan(USERS, (USERS,), 1, tmp_path, Progress(disable=True), 1, core, Path("/no/python"))


def report(tmp_path: Path, *arguments: str, path: str | None = None) -> Any:
    """Run ``python -m benchmarks`` at toy size, without the peers; return its report."""
    file = tmp_path / "report.json"
    toy = (f"--keys={USERS}", f"--users={USERS}", "--rounds=1", "--seconds=1", "--peers=/no/python")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *toy, f"--json={file}", *arguments],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | ({} if path is None else {"PATH": path}),
    )
    assert done.returncode == 0, done.stderr
    return json.loads(file.read_text(encoding="utf-8"))


def inputs(mix: traffic.Mix) -> list[str]:
    """Return the inputs in the bodies of a run."""
    return [json.loads(body)["input"] for body in mix(USERS, 1).bodies]


def get_person(port: int, nickname: str, token: str = proxy.TOKEN) -> tuple[int, Any]:
    """Return the status and the record of the stub's response."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        headers = {"Authorization": f"Bearer {token}"}
        connection.request("GET", f"/people/{nickname}", headers=headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


@pytest.mark.parametrize("name", traffic.MIXES)
def test_the_head_has_the_length_of_every_body(name: str) -> None:
    made = traffic.MIXES[name](USERS, 1)
    assert f"Content-Length: {len(made.bodies[0])}\r\n\r\n".encode() in made.head
    assert {len(body) for body in made.bodies} == {len(made.bodies[0])}


def test_uniform_traffic_contains_every_user_equally_often() -> None:
    assert len(set(Counter(inputs(traffic.uniform)).values())) == 1
    assert set(inputs(traffic.uniform)) == {f"@{dataset.nickname(n)}" for n in range(USERS)}


def test_zipf_traffic_contains_the_first_user_about_twice_as_often_as_the_second() -> None:
    (_, first), (_, second), *_ = Counter(inputs(traffic.zipf)).most_common()
    assert first / second == pytest.approx(2**1.1, rel=0.05)


def test_never_repeating_traffic_does_not_repeat_in_the_next_run() -> None:
    texts = inputs(traffic.never_repeating) + inputs(traffic.never_repeating)
    assert len(set(texts)) == len(texts)


def test_a_file_of_requests_is_one_head_and_one_body_per_line(tmp_path: Path) -> None:
    made = traffic.for_users([1, 2])
    made.write(tmp_path / "requests")
    written = (tmp_path / "requests").read_bytes()
    assert written[: len(made.head)] == made.head
    assert written[len(made.head) :].splitlines() == list(made.bodies)


async def test_ours_and_our_handlers_on_tornado_conform(plan: Plan) -> None:
    sides = {
        name: side
        for name, side in contenders.all_contenders(plan).items()
        if name != contenders.NGINX
    }
    assert set(sides) == {contenders.OURS, contenders.WITHOUT_PACKET_CACHE, contenders.TORNADO}
    async with contenders.run_all(plan, sides) as servers:
        for server in servers.values():
            assert server.start > 0
            assert server.cpu() > 0
            assert server.resident() > 1
    assert set(plan.skipped) >= {contenders.FASTAPI, contenders.ASGI}


async def test_responses_to_each_mix_have_its_status(plan: Plan) -> None:
    side = contenders.ours(plan)[contenders.OURS]
    async with contenders.run_contender(plan, "ours", side) as server:
        for mix in traffic.MIXES.values():
            made = mix(USERS, 1)
            key = traffic.KEY if traffic.KEY.encode() in made.head else "k" * 16
            assert post(server.port, made.bodies[0], key)[0] == made.status


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


def test_start_is_measured_without_wrk_nginx_or_peers(tmp_path: Path) -> None:
    result = report(tmp_path, "--only=start", path="/no/where")
    assert {each["of"] for each in result["figures"]} >= {contenders.OURS, contenders.TORNADO}
    assert "make bench" in result["skipped"][contenders.FASTAPI]


def test_without_wrk_the_report_says_what_to_install(tmp_path: Path) -> None:
    benchmarks = ("throughput", "mixes", "latency", "attack", "uncached", "proxy")
    result = report(tmp_path, *(f"--only={name}" for name in benchmarks), path="/no/where")
    assert result["figures"] == []
    for name in benchmarks:
        assert "apt-get install wrk" in result["skipped"][name]


@needs_wrk
def test_responses_under_load_are_counted(tmp_path: Path) -> None:
    result = report(tmp_path, "--only=uncached")
    assert {each["what"] for each in result["figures"]} == {"responses", "CPU for 1,000"}
    assert all(each["value"] >= 0 for each in result["figures"])
    assert result["machine"]["wrk"]


@needs_wrk
def test_the_proxy_is_measured_beside_the_bare_client(
    tmp_path: Path,
) -> None:
    result = report(tmp_path, "--only=proxy")
    sides = {each["of"] for each in result["figures"] if each["of"]}
    assert sides == {proxy.OURS, proxy.BARE}
    (figure,) = (each for each in result["figures"] if each["target"])
    assert figure["target"] == {"at": "least", "bound": 0.5}
    assert all(each["value"] >= 0 for each in result["figures"])
    assert "make bench" in result["skipped"][contenders.FASTAPI_HTTPX]


async def test_the_stub_finds_each_user_and_rejects_a_wrong_token(plan: Plan) -> None:
    async with proxy.directory(plan) as (stub, _):
        for number in (0, 7, USERS - 1):
            status, record = await asyncio.to_thread(
                get_person, stub.port, dataset.nickname(number)
            )
            assert status == 200
            assert record["login"] == dataset.nickname(number)
            assert record["card"] == dataset.card_number(number)
        assert (await asyncio.to_thread(get_person, stub.port, "unknown"))[0] == 404
        assert (await asyncio.to_thread(get_person, stub.port, "unknown", "no"))[0] == 401


async def test_the_service_in_front_of_the_stub_conforms(plan: Plan) -> None:
    async with proxy.directory(plan) as (stub, _), contenders.run_all(plan, proxy.ours(plan, stub)):
        pass


@needs_wrk
async def test_legitimate_clients_are_measured_during_each_attack(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attack keeps its connections open, few of them here; the server conforms afterwards."""
    monkeypatch.setattr(attack, "RAMP_UP", 0.2)
    monkeypatch.setattr(attack, "SCALE", 0.02)
    monkeypatch.setattr(attack, "IDLE_PRIORITY", ())
    async with asyncio.timeout(240):
        figures = await attack.attack(plan)
    with_target = [each.what for each in figures if each.target]
    assert len(with_target) == len(attackers.ATTACKS)
    assert all(name in what for name, what in zip(attackers.ATTACKS, with_target, strict=True))
    assert all(each.value >= 0 for each in figures)


async def test_an_attack_that_gets_no_cpu_time_is_an_error(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other load may keep a process of idle priority from running at all."""
    monkeypatch.setattr(attack, "RAMP_UP", 0.0)
    monkeypatch.setattr(attack, "TIMEOUT", 0.01)
    server = Server("ours", 1, os.getpid(), 0)
    with pytest.raises(RuntimeError, match="timeout, core"):
        async with attack.attacked(plan, server, next(iter(attackers.ATTACKS)), []):
            pass


async def test_an_attack_without_connections_is_an_error(plan: Plan) -> None:
    closed = Server("closed", 1, os.getpid(), 0)
    with pytest.raises(RuntimeError, match="closed accepted no connections"):
        async with attack.attacked(plan, closed, next(iter(attackers.ATTACKS)), []):
            pass
