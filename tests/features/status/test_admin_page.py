"""The status page as it is sent: its policy, its files, and the history that it shows."""

import re
from pathlib import Path
from typing import cast

import pytest

from support.fakes.clock_and_backends import Ticker
from support.http.http_server import until
from support.processes.admin import ask_admin
from support.processes.process import eventually
from support.processes.service import Client
from tornado_idv.admin.operations import OperationFailed, Operations
from tornado_idv.admin.report import ProcessReport, Report
from tornado_idv.features.status.handlers import FILE_ROUTES
from tornado_idv.features.status.history import History, Sample, percentile, sampled
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
