"""The record of a service, as JSON and as text, and its page: policy, files and history."""

import json
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from support.fakes.clock_and_backends import Ticker
from support.http.http_server import until
from support.processes.admin import WITH_ADMIN, ask_admin
from support.processes.process import Invoke, eventually
from support.processes.service import Client, serving
from tornado_idv.admin.operations import OperationFailed, Operations
from tornado_idv.admin.report import PartReport, ProcessReport, Report
from tornado_idv.cli.admin_client import AdminListener
from tornado_idv.features.status.handlers import FILE_ROUTES
from tornado_idv.features.status.history import History, Sample, percentile, sampled
from tornado_idv.keys.token import issue
from tornado_idv.log_format import format_time
from tornado_idv.metrics.counters import BOUNDS, Counters
from tornado_idv.service.service import Service

STATIC = Path(__file__).parents[3] / "tornado_idv" / "features" / "status" / "static"


def test_page_runs_only_its_own_scripts_and_styles(service: Service) -> None:
    replies = [ask_admin(service, "/status") for _ in range(2)]
    nonces = set()
    for reply in replies:
        assert reply.status == 200
        assert reply.headers["Content-Type"] == "text/html; charset=utf-8"
        assert reply.headers["Cache-Control"] == "no-store"
        assert reply.headers["Referrer-Policy"] == "no-referrer"
        policy = dict(
            each.split(maxsplit=1) for each in reply.headers["Content-Security-Policy"].split(";")
        )
        nonce = policy["script-src"].removeprefix("'nonce-").removesuffix("'")
        nonces.add(nonce)
        none = ("default-src", "base-uri", "form-action", "frame-ancestors")
        by_nonce = dict.fromkeys(("script-src", "style-src"), f"'nonce-{nonce}'")
        allowed = by_nonce | {"connect-src": "'self'", "img-src": "data:"}
        assert policy == dict.fromkeys(none, "'none'") | allowed
        tags = re.findall(r"<(?:script|link rel=\"stylesheet\")[^>]*>", reply.body.decode())
        assert len(tags) == 4
        skeleton = (STATIC / "status.html").read_text(encoding="utf-8")
        assert reply.body.decode() == skeleton.replace("{nonce}", nonce)
        assert all(f'nonce="{nonce}"' in tag for tag in tags)
    assert len(nonces) == 2


def test_each_file_is_sent_with_its_type(service: Service) -> None:
    assert {path.name for path in STATIC.iterdir()} == {
        "status.html",
        "uPlot.LICENSE",
        *(path.rpartition("/")[2] for path in FILE_ROUTES),
    }
    for path in FILE_ROUTES:
        reply = ask_admin(service, path)
        kind = "css" if path.endswith(".css") else "javascript"
        assert reply.headers["Content-Type"] == f"text/{kind}; charset=utf-8"
        assert reply.body == (STATIC / path.rpartition("/")[2]).read_bytes()


def test_page_requests_nothing_from_elsewhere() -> None:
    for path in STATIC.iterdir():
        if not path.name.startswith("uPlot"):
            text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
            assert "://" not in text
            assert "innerHTML" not in text


@pytest.mark.slow
def test_history_shows_the_requests_of_the_last_seconds(service: Service) -> None:
    Client(service.port).by_input("@alice")
    Client(service.port).by_input("@alice")
    history: dict[str, list[float]] = {}

    def has_requests() -> bool:
        record = ask_admin(service, "/status/history.json").json
        assert (record["interval_s"], record["window_s"]) == (1, 5)
        history.update(record["samples"])
        return any(history["requests"])

    eventually(has_requests)
    assert list(history) == list(Sample._fields)
    assert len({len(column) for column in history.values()}) == 1
    assert history["hit_ratio"][-1] == 0.5
    assert 0 < history["p50"][-1] <= history["p99"][-1] < 2500
    status = ask_admin(service, "/status.json").json
    assert list(status["recent"]) == list(Sample._fields)
    latency = status["backends"][0]["latency_ms"]
    assert 0 < latency["p50"] <= latency["p99"]


class Counted:
    """A history whose time and counters a test sets."""

    def __init__(self) -> None:
        self.ticker = Ticker()
        self.counters = Counters()
        self.history = History(self.ticker, self.ticker)
        self._sample()

    def _sample(self) -> None:
        self.history.sample(Report("ready", 1, 0.0, ProcessReport(), self.counters))

    def second(self, code: str = "ok", seconds: float = 0.001, times: int = 0) -> Sample:
        """Count responses of two routes, and return the sample at the end of this second."""
        for number in range(times):
            self.counters.responses[f"route {number % 2}", code].add(seconds)
        self.ticker.now += 1
        self._sample()
        return Sample(**self.history.latest)  # type: ignore[arg-type]


def test_sample_describes_five_seconds() -> None:
    counted = Counted()
    assert counted.history.latest is None
    first = counted.second()
    assert (first.requests, first.p50, first.hit_ratio) == (0, None, None)
    assert counted.second(times=20).requests == 10  # in two seconds up to now
    assert [counted.second().requests for _ in range(5)] == [6.67, 5, 4, 4, 0]
    failed = counted.second("backend_unavailable", 0.3, times=5)
    assert (failed.requests, failed.errors, failed.p99) == (1, 1, 497.5)
    assert counted.second("not_found", times=5).errors == 1


@pytest.mark.parametrize(
    ("code", "field"),
    [
        ("token_invalid_or_expired", "status_401"),
        ("insufficient_scope", "status_403"),
        ("not_found", "status_404"),
        ("no_such_route", "status_404"),
        ("rate_limited", "status_429"),
        ("backend_unavailable", "errors"),
        ("overloaded", "errors"),
        ("internal", "errors"),
        ("ok", None),
        ("invalid_format", None),
    ],
)
def test_errors_are_shown_by_kind(code: str, field: str | None) -> None:
    sample = Counted().second(code, times=5)._asdict()
    rates = {name: sample[name] for name in sample if name.startswith(("status_", "error"))}
    assert (sample["requests"], len(rates)) == (5, 5)
    assert {name for name, rate in rates.items() if rate} == ({field} if field else set())
    assert field is None or rates[field] == 5


def test_stale_answers_and_hits_are_shown() -> None:
    counted = Counted()
    counted.counters.cache_lookups.update(hit=6, stale=2, miss=1, coalesced=1, shared=2)
    sample = counted.second()
    assert (sample.hit_ratio, sample.stale) == (0.5, 2)
    assert [counted.second().stale for _ in range(6)][-1] == 0


class Unavailable:
    """Operations of a service whose workers do not report."""

    def __init__(self) -> None:
        self.asked = 0

    async def report(self) -> Report:
        self.asked += 1
        raise OperationFailed


async def test_sample_is_omitted_while_there_is_no_report(caplog: pytest.LogCaptureFixture) -> None:
    operations = Unavailable()
    async with sampled(cast("Operations", operations)) as history:
        await until(lambda: operations.asked)
    assert history.latest is None
    assert caplog.messages == []


def test_history_is_15_minutes_long() -> None:
    counted = Counted()
    for _ in range(950):
        counted.second()
    times = counted.history.columns()["time"]
    assert (len(times), times[0], times[-1]) == (900, 1051, 1950)


def test_latency_of_a_backend_is_that_of_the_last_minute() -> None:
    counted = Counted()
    counted.counters.count_backend_call("users", "found", "", 0.2)
    counted.second()
    assert counted.history.backend_latency("users") == {"p50": 175.0, "p99": 248.5}
    for _ in range(59):
        counted.second()
    assert counted.history.backend_latency("users")["p50"] == 175.0
    counted.second()
    assert counted.history.backend_latency("users") == {"p50": None, "p99": None}
    assert counted.history.backend_latency("added-later") == {"p50": None, "p99": None}
    assert History().backend_latency("users") == {"p50": None, "p99": None}


@pytest.mark.parametrize(
    ("buckets", "percent", "expected"),
    [
        ({}, 50, None),
        ({0: 4}, 50, 0.025),
        ({4: 100}, 50, 0.75),
        ({4: 90, 9: 10}, 90, 1.0),
        ({4: 90, 9: 10}, 95, 37.5),
        ({len(BOUNDS): 1}, 99, 2500.0),
        ({0: 1, len(BOUNDS): 1}, 99, 2500.0),
    ],
    ids=["none", "first", "one", "bound", "between", "above", "above and below"],
)
def test_percentiles_are_estimated_from_buckets(
    buckets: dict[int, int], percent: int, expected: float | None
) -> None:
    counts = [buckets.get(i, 0) for i in range(len(BOUNDS) + 1)]
    assert percentile(counts, percent) == pytest.approx(expected)


def test_status_gives_an_overview(service: Service, used: Path, invoke: Invoke) -> None:
    Client(service.port).by_input("@alice")
    status = ask_admin(service, "/status.json").json
    assert status["status"] == "ready"
    assert status["requests"]["url"]["ok"] == 1
    assert status["cache"]["entries"] == {"found": 1, "negative": 0}
    (backend,) = status["backends"]
    assert (backend["name"], backend["calls"]) == ("users", {"found": 1})
    assert (backend["last_error"], backend["last_error_at"]) == (None, None)
    assert status["keys"] == {"count": 3, "next_expiry": None, "expiring": []}
    text = invoke("status", "--config", used).stdout
    assert "requests:     url: ok 1\n" in text
    assert "backend:      users (yaml): available\n" in text
    assert "keys:         3\n" in text
    assert "cache:        1 found and 0 not found; 0.0% of 1 lookups were hits" in text
    record = json.loads(invoke("status", "--config", used, "--json").stdout)
    assert record["requests"] == status["requests"]


def test_status_lists_the_keys_that_expire_within_14_days(tmp_path: Path) -> None:
    """At most 20, the next one first; not those that have expired."""
    now = time.time()
    expirations = {f"k{day}": format_time(now + day * 86400) for day in (20, 13, 2, 5)}
    with serving(with_keys(expirations), tmp_path) as service:
        keys = ask_admin(service, "/status.json").json["keys"]
    assert [each["id"] for each in keys["expiring"]] == ["k2", "k5", "k13"]
    assert keys["expiring"][0] == {"id": "k2", "expires": keys["next_expiry"]}
    assert keys["next_expiry"][:19] == expirations["k2"][:19]
    expirations = {f"k{hour}": format_time(now + hour * 3600) for hour in range(1, 31)}
    with serving(with_keys(expirations), tmp_path) as service:
        keys = ask_admin(service, "/status.json").json["keys"]
    assert [each["id"] for each in keys["expiring"]] == [f"k{hour}" for hour in range(1, 21)]


def with_keys(expirations: dict[str, str]) -> str:
    """Return a configuration with more keys, which expire at these times."""
    lines = "".join(
        f"    - {{id: {key_id}, token: {issue(key_id)}, expires: {expires}}}\n"
        for key_id, expires in expirations.items()
    )
    return WITH_ADMIN.replace("backends:\n", f"{lines}backends:\n")


def test_status_shows_what_fails(
    service: Service, used: Path, tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users.yaml").write_text("users:\n", encoding="utf-8")
    key_store = SimpleNamespace(report=lambda: PartReport("keys.db: gone", 0.0))
    monkeypatch.setitem(cast("dict[str, Any]", service.parts), "key store", key_store)
    service.sockets = PartReport("unix:/s was removed", 0.0)
    monkeypatch.setattr(service.logs.writer, "dropped", 5)
    backend = service.directories.current.guards[0].backend
    servers = property(lambda _: [("db2:5432", "standby")])
    monkeypatch.setattr(type(backend), "servers", servers)
    eventually(lambda: backend.problem is not None)
    text = invoke("status", "--config", used).stdout
    condition = f"degraded: {backend.problem}, db2:5432 (standby)"
    assert f"backend:      users (yaml): {condition}\n" in text
    assert "key store:    keys.db: gone\n" in text
    assert "sockets:      unix:/s was removed\n" in text
    assert "log lines:    5 dropped\n" in text


def test_status_has_a_line_for_each_part_of_the_record(
    service: Service, used: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {"name": "x", "kind": "k", "servers": [], "available": False, "last_error": "no"}
    half_open = {"breaker": "half_open", "failing_since": None, "next_probe_s": 2.5}
    is_open = {"breaker": "open", "failing_since": "F", "next_probe_s": None}
    shadow = {"available": True, "problem": None, "comparisons": {"match": 2, "differs": 0}}
    worker = {"name": "worker 1", "pid": 7, "phase": "ready", "uptime_s": 4.2, "requests": 3}
    reload: dict[str, Any] = {"result": "ok", "time": "T", "problem": None}
    record = ask_admin(service, "/status.json").json | {
        "workers": [worker],
        "backends": [source | half_open, source | is_open],
        "shadows": [source | shadow, source | shadow | {"comparisons": {"match": 0}}],
        "key_store": {"error": None},
        "unix_sockets": {"error": None},
        "keys": {"count": 2, "next_expiry": "E"},
        "cache_snapshot": {"error": "full"},
        "connections": {"idle": 1, "active": 2},
        "log_dropped": 5,
    }
    monkeypatch.setattr(AdminListener, "request", lambda *_: record)
    lines = set()
    for more in ({"needs_restart": ["a", "b"]}, {"problem": "bad", "needs_restart": []}):
        record["last_reload"] = reload | more
        lines |= {*invoke("status", "--config", used).stdout.splitlines()}
    assert lines >= {
        "worker:       worker 1 (pid 7): ready, up for 4 s, 3 requests",
        "backend:      x (k): failing: no; circuit breaker half-open, next probe in 2.5 s",
        "backend:      x (k): failing since F: no; circuit breaker open",
        "shadow:       x (k): available; 2 match",
        "shadow:       x (k): available; none yet",
        "keys:         2, the next expires at E",
        "snapshot:     full",
        "connections:  3",
        "log lines:    5 dropped",
        "last reload:  ok at T; after a restart: a, b",
        "last reload:  ok at T: bad",
    }
    assert not [line for line in lines if line.endswith("None")]
