"""Each benchmark runs at toy size; the figures themselves are not tested."""

import asyncio
import json
import os
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.progress import Progress

from benchmarks import __main__ as command
from benchmarks import rounds
from benchmarks.figures import Figure
from benchmarks.plan import Plan
from benchmarks.suite import BENCHMARKS
from benchmarks.wire import attack, conformance, contenders, growth, traffic, wrk
from benchmarks.wire.contenders import Contender
from benchmarks.wire.process import Server

pytestmark = [pytest.mark.slow, pytest.mark.ci]

USERS = 50
FULL_ROUNDS = {"throughput", "mixes", "latency", "real_clients"}
"""Benchmarks that need full rounds, or peers. Others call the same functions."""
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
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """The plan of a run at toy size: one short round, without warm-up and peers.

    Each run of wrk has few connections, and ends after a hundred responses.
    """
    script = tmp_path / "few.lua"
    script.write_text(FEW_REQUESTS.format(wrk._SCRIPT), encoding="utf-8")  # noqa: SLF001 - the script of the benchmark
    toys = {wrk: {"_SCRIPT": script, "CONNECTIONS": 4}, growth: {"_KEYS": 4}}
    toys[traffic] = {"_LIST_LENGTH": 20 * USERS, "_MAX_RATE": 20 * USERS}
    toys[attack] = {"RAMP_UP": 0.2, "SCALE": 0.02, "_SHARE": 2.0, "low_priority": lambda: ()}
    for module, values in toys.items():
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(Server, "cpu", lambda _: time.perf_counter())  # in so few, no tick
    core, peers = min(os.sched_getaffinity(0)), Path("/no/python")
    return Plan(
        USERS, (USERS,), 1, tmp_path, Progress(disable=True), 0.05, core, peers, warm_up=False
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [each for each in BENCHMARKS if each not in FULL_ROUNDS])
async def test_benchmark_has_figures_with_targets(plan: Plan, name: str) -> None:
    """The servers respond as documented, or it is an error. Peers are not installed."""
    figures = await BENCHMARKS[name](plan)
    if not figures:
        pytest.skip("; ".join(plan.skipped.values()))
    assert all(each.value >= 0 for each in figures)
    assert all(each.met is not None for each in figures if each.target)


def test_report_is_complete_and_strict_exits_with_1_if_a_target_is_missed(tmp_path: Path) -> None:
    (tmp_path / "report.json").touch()
    toy = ["--keys=20", "--users=20", "--users=60", "--rounds=1", "--peers=/no/python"]
    chosen = ["--only=sqlite", "--only=throughput", "--strict", f"--folder={tmp_path}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "/no/where")
        done = CliRunner().invoke(
            command.main, [*toy, *chosen, f"--json={tmp_path / 'report.json'}"]
        )
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    missed = [each for each in report["figures"] if each["met"] is False]
    assert done.exit_code == bool(missed), done.output
    assert {each["benchmark"] for each in report["figures"]} == {"sqlite"}
    assert "apt-get install wrk" in report["skipped"]["throughput"]
    for figure in report["figures"]:
        value, target = figure["value"], figure["target"]
        assert figure["rounds"] == [value], figure
        if target:
            bound = target["bound"]
            assert figure["met"] is (value <= bound if target["at"] == "most" else value >= bound)
    assert all(name in done.output for name in ("cpu", "python", "uvloop", "SQLite"))
    assert {path.name for path in tmp_path.glob("*.db")} == {"users-20.db", "users-60.db"}


def test_value_is_the_median_of_the_rounds() -> None:
    assert Figure("lookups", "s", (9.0, 1.0, 2.0)).value == 2.0
    assert Figure("lookups", "s", (1.0, 2.0)).value == 1.5


async def test_every_other_round_runs_the_sides_in_reverse_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each has run once to warm up, which is not measured."""
    monkeypatch.setattr(rounds, "tune_gc", lambda: None)
    ran: list[str] = []

    async def run(name: str) -> int:
        ran.append(name)
        return len(ran)

    plan = Plan(1, (), 2, tmp_path, Progress(disable=True), 1, 0, tmp_path)
    sides = {name: partial(run, name) for name in ("a", "b")}
    assert await rounds.interleave(plan, "runs", sides) == {"a": [3, 6], "b": [4, 5]}
    assert "".join(ran) == "ababba"


def test_zipf_traffic_contains_the_first_user_about_twice_as_often_as_the_second() -> None:
    (_, first), (_, second), *_ = Counter(traffic.zipf(USERS, 1).bodies).most_common()
    assert first / second == pytest.approx(2**1.1, rel=0.05)


def test_never_repeating_traffic_does_not_repeat_in_the_next_run(plan: Plan) -> None:
    bodies = [*traffic.never_repeating(USERS, 1).bodies, *traffic.never_repeating(USERS, 1).bodies]
    assert len(set(bodies)) == len(bodies)


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
