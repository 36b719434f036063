"""The benchmarks over HTTP ask what they say, and leave out what is not on the machine."""

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

from benchmarks import people
from benchmarks.plan import Plan
from benchmarks.wire import agreement, attack, attackers, proxy, servers, traffic
from benchmarks.wire.server import Server, ask
from benchmarks.wire.servers import Side

ROOT = Path(__file__).parents[1]
USERS = 50
needs_wrk = pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    core = min(os.sched_getaffinity(0))
    return Plan(USERS, (USERS,), 1, tmp_path, Progress(disable=True), 1, core, Path("/no/python"))


def report(tmp_path: Path, *arguments: str, path: str | None = None) -> Any:
    """The report of ``python -m benchmarks`` at toy size, without the peers."""
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


def asked(mix: traffic.Mix) -> list[str]:
    """What the bodies of a run ask for."""
    return [json.loads(body)["input"] for body in mix(USERS, 1).bodies]


def look(port: int, nickname: str, token: str = proxy.TOKEN) -> tuple[int, Any]:
    """What the stub answers to whom it is asked for."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        headers = {"Authorization": f"Bearer {token}"}
        connection.request("GET", f"/people/{nickname}", headers=headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


@pytest.mark.parametrize("name", traffic.MIXES)
def test_a_head_tells_the_length_of_each_of_its_bodies(name: str) -> None:
    made = traffic.MIXES[name](USERS, 1)
    assert f"Content-Length: {len(made.bodies[0])}\r\n\r\n".encode() in made.head
    assert {len(body) for body in made.bodies} == {len(made.bodies[0])}


def test_uniform_traffic_asks_for_every_user_alike() -> None:
    assert len(set(Counter(asked(traffic.uniform)).values())) == 1
    assert set(asked(traffic.uniform)) == {f"@{people.nickname(n)}" for n in range(USERS)}


def test_zipf_traffic_asks_for_the_first_about_twice_as_often_as_for_the_second() -> None:
    (_, first), (_, second), *_ = Counter(asked(traffic.zipf)).most_common()
    assert first / second == pytest.approx(2**1.1, rel=0.05)


def test_traffic_that_never_repeats_does_not_in_the_next_run_either() -> None:
    texts = asked(traffic.never_again) + asked(traffic.never_again)
    assert len(set(texts)) == len(texts)


def test_a_file_of_requests_is_a_head_and_a_body_on_each_line(tmp_path: Path) -> None:
    made = traffic.for_users([1, 2])
    made.write(tmp_path / "requests")
    written = (tmp_path / "requests").read_bytes()
    assert written[: len(made.head)] == made.head
    assert written[len(made.head) :].splitlines() == list(made.bodies)


async def test_ours_and_our_handlers_on_tornado_keep_the_contract(plan: Plan) -> None:
    sides = {name: side for name, side in servers.every(plan).items() if name != servers.NGINX}
    assert set(sides) == {servers.OURS, servers.WITHOUT_PACKETS, servers.TORNADO}
    async with servers.started(plan, sides) as there:
        for server in there.values():
            assert server.start > 0
            assert server.cpu() > 0
            assert server.resident() > 1
    assert set(plan.left_out) >= {servers.FASTAPI, servers.ASGI}


async def test_all_mixes_are_answered_with_their_status(plan: Plan) -> None:
    side = servers.ours(plan)[servers.OURS]
    async with servers.running_side(plan, "ours", side) as server:
        for mix in traffic.MIXES.values():
            made = mix(USERS, 1)
            key = traffic.KEY if traffic.KEY.encode() in made.head else "k" * 16
            assert ask(server.port, made.bodies[0], key)[0] == made.status


async def test_a_server_that_answers_otherwise_is_told(plan: Plan) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{"status":"no"}')
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        other = Server("another", port, os.getpid(), 0)
        with pytest.raises(RuntimeError, match=r"another answers .* with 200"):
            await asyncio.to_thread(agreement.check, other, USERS)


async def test_a_server_that_ends_is_told_with_what_it_said(plan: Plan) -> None:
    side = Side(lambda _port: [sys.executable, "-c", "raise SystemExit('no such thing')"])
    with pytest.raises(RuntimeError, match="no such thing"):
        async with servers.running_side(plan, "another", side):
            pass


def test_the_start_is_measured_without_anything_installed(tmp_path: Path) -> None:
    told = report(tmp_path, "--only=start", path="/no/where")
    assert {each["of"] for each in told["figures"]} >= {servers.OURS, servers.TORNADO}
    assert "make bench" in told["left_out"][servers.FASTAPI]


def test_without_wrk_it_is_said_what_to_install(tmp_path: Path) -> None:
    benchmarks = ("http", "traffic", "latency", "attack", "backends", "proxy")
    told = report(tmp_path, *(f"--only={name}" for name in benchmarks), path="/no/where")
    assert told["figures"] == []
    for name in benchmarks:
        assert "apt-get install wrk" in told["left_out"][name]


@needs_wrk
def test_under_load_each_answer_is_counted(tmp_path: Path) -> None:
    told = report(tmp_path, "--only=backends")
    assert {each["what"] for each in told["figures"]} == {"answers", "CPU for 1,000"}
    assert all(each["value"] >= 0 for each in told["figures"])
    assert told["machine"]["wrk"]


@needs_wrk
def test_what_stands_in_front_of_a_directory_is_measured_beside_what_asking_takes(
    tmp_path: Path,
) -> None:
    told = report(tmp_path, "--only=proxy")
    sides = {each["of"] for each in told["figures"] if each["of"]}
    assert sides == {proxy.OURS, proxy.BARE}
    (promised,) = (each for each in told["figures"] if each["promise"])
    assert promised["promise"] == {"at": "least", "bound": 0.6}
    assert all(each["value"] >= 0 for each in told["figures"])
    assert "make bench" in told["left_out"][servers.FASTAPI_HTTPX]


async def test_the_stub_knows_each_user_and_refuses_who_has_no_token(plan: Plan) -> None:
    async with proxy.directory(plan) as (stub, _):
        for number in (0, 7, USERS - 1):
            status, record = await asyncio.to_thread(look, stub.port, people.nickname(number))
            assert status == 200
            assert record["login"] == people.nickname(number)
            assert record["card"] == people.card_number(number)
        assert (await asyncio.to_thread(look, stub.port, "nobody"))[0] == 404
        assert (await asyncio.to_thread(look, stub.port, "nobody", "no"))[0] == 401


async def test_in_front_of_the_stub_the_contract_is_kept(plan: Plan) -> None:
    async with proxy.directory(plan) as (stub, _), servers.started(plan, proxy.ours(plan, stub)):
        pass


@needs_wrk
async def test_good_callers_are_measured_beside_each_attack(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each holds its connections, few of them here, and the server is as before when it ends."""
    monkeypatch.setattr(attack, "LIFE", 0.2)
    monkeypatch.setattr(attack, "CROWD", 0.02)
    monkeypatch.setattr(attack, "BACKGROUND", ())
    async with asyncio.timeout(240):
        figures = await attack.attack(plan)
    promised = [each.what for each in figures if each.promise]
    assert len(promised) == len(attackers.ATTACKS)
    assert all(name in what for name, what in zip(attackers.ATTACKS, promised, strict=True))
    assert all(each.value >= 0 for each in figures)


async def test_an_attack_that_has_no_time_is_reported(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other work may keep a background process from ever running."""
    monkeypatch.setattr(attack, "LIFE", 0.0)
    monkeypatch.setattr(attack, "PATIENCE", 0.01)
    name = next(iter(attackers.ATTACKS))
    server = Server("ours", 1, os.getpid(), 0)
    with pytest.raises(RuntimeError, match="had no time on core"):
        async with attack.attacked(plan, server, name, []):
            pass


async def test_an_attack_that_is_not_let_in_is_told(plan: Plan) -> None:
    nobody = Server("nobody", 1, os.getpid(), 0)
    with pytest.raises(RuntimeError, match="nobody let nobody attack it"):
        async with attack.attacked(plan, nobody, next(iter(attackers.ATTACKS)), []):
            pass
