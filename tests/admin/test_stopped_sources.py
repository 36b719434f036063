"""A backend whose server is stopped is degraded, counted as failing, and raises the alerts."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client import parser

from support.databases.postgres_server import ALICE, Database
from support.databases.postgres_server import stopped as stopped_postgres
from support.databases.redis_server import running_server
from support.http.metrics import scrape
from support.processes.admin import ask_admin
from support.processes.process import eventually
from support.processes.proxies import find_tool
from support.processes.service import CONFIG, Client, make_database, serving
from tornado_idv.service.service import Service

pytestmark = pytest.mark.slow

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules.yml"
ALERTS = ("IdvBackendFailing", "IdvDegraded")
TARGET = {"job": "tornado-idv", "instance": "a"}
ROW = (ALICE.nickname, ALICE.card_number, ALICE.plan, None)


class Source(NamedTuple):
    """The source of a backend, which has one user; ``stopped`` takes it away meanwhile."""

    options: str
    stopped: Callable[[], AbstractContextManager[None]]


@pytest.fixture
def postgres(database: Database) -> Source:
    database.write(ALICE)
    return Source(f"kind: postgres, dsn: '{database.dsn}'", lambda: stopped_postgres(database))


@pytest.fixture
def redis() -> Iterator[Source]:
    with running_server() as server:
        server.write(ALICE)

        @contextmanager
        def stopped() -> Iterator[None]:
            server.stop()
            yield
            server.start()
            server.write(ALICE)
            server.run("SET", "ready", server.run_id)  # another value is one of before the restart

        yield Source(f"kind: redis, url: '{server.url}'", stopped)


@pytest.fixture
def sqlite(tmp_path: Path) -> Source:
    make_database(tmp_path / "users.db", ROW)

    @contextmanager
    def stopped() -> Iterator[None]:
        (tmp_path / "users.db").rename(tmp_path / "away.db")
        yield
        (tmp_path / "away.db").rename(tmp_path / "users.db")

    return Source("kind: sqlite, path: users.db", stopped)


@pytest.fixture(params=["postgres", "redis"])
def server(request: pytest.FixtureRequest) -> Source:
    found: Source = request.getfixturevalue(request.param)
    return found


def serving_from(source: Source, folder: Path) -> AbstractContextManager[Service]:
    backend = f"  - {{name: crm, {source.options}, breaker: {{open_for: 100ms}}}}\n"
    return serving(f"{CONFIG}{backend}admin: {{port: 0}}\n", folder)


def is_ready(service: Service) -> bool:
    return bool(ask_admin(service, "/health/ready").json["status"] == "ready")


def samples(service: Service) -> dict[str, float]:
    """Return all samples, by their names and labels as Prometheus stores them."""
    text = ask_admin(service, "/metrics").body.decode()
    return {
        sample.name + json.dumps({**sample.labels, **TARGET}): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def assert_alerts(
    before: dict[str, float], after: dict[str, float], folder: Path, *, fire: bool
) -> None:
    """Check the alerts after ten minutes in which counters go on as between two scrapes."""
    series = []
    for sample, value in after.items():
        name, _, text = sample.partition("{")
        labels = ",".join(
            f"{key}={json.dumps(each)}" for key, each in json.loads("{" + text).items()
        )
        grows = name.endswith(("_total", "_count", "_bucket", "_sum"))
        values = f"0+{value - before.get(sample, 0.0):f}x10" if grows else f"{value:f}x10"
        series.append({"series": f"{name}{{{labels}}}", "values": values})
    count = 'count by (alertname) (ALERTS{alertstate="firing",alertname=~"%s"})'
    expected = [f'{{alertname="{alert}"}}' for alert in ALERTS] if fire else []
    test = {
        "expr": count % "|".join(ALERTS),
        "eval_time": "10m",
        "exp_samples": [{"labels": labels, "value": 1} for labels in expected],
    }
    tests = [{"interval": "1m", "input_series": series, "promql_expr_test": [test]}]
    path = folder / "alerts_test.yml"
    path.write_text(json.dumps({"rule_files": [str(RULES)], "tests": tests}))
    arguments = [find_tool("promtool"), "test", "rules", path]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_source_that_stops_is_visible_everywhere(redis: Source, tmp_path: Path) -> None:
    with serving_from(redis, tmp_path) as service:
        client = Client(service.port)
        assert client.by_input("@alice").status == 200
        assert is_ready(service)
        healthy = samples(service)
        assert_alerts({}, healthy, tmp_path, fire=False)
        with redis.stopped():
            assert [client.by_input(f"@{name}").status for name in "bcde"] == [503] * 4
            health = ask_admin(service, "/health/ready")
            (backend,) = ask_admin(service, "/status.json").json["backends"]
            value = scrape(service)
            failing = samples(service)
        # A source that is down is no fault of this instance.
        assert (health.status, health.json["status"]) == (200, "degraded")
        assert health.json["degraded"] == ["backend crm"]
        assert not backend["available"]
        assert backend["failing_since"].endswith("Z")
        assert backend["last_error_at"].endswith("Z")
        assert backend["last_error"]
        assert backend["calls"]["unavailable"] == 4
        assert value("idv_degraded", part="backend crm") == 1
        assert value("idv_backend_requests_total", backend="crm", outcome="unavailable") == 4
        assert_alerts(healthy, failing, tmp_path, fire=True)
        eventually(lambda: client.by_input("@zoe").status == 404)
        eventually(lambda: is_ready(service))


def test_a_source_that_is_away_at_the_start_is_visible_without_a_lookup(
    server: Source, tmp_path: Path
) -> None:
    with ExitStack() as running:
        with server.stopped():
            service = running.enter_context(serving_from(server, tmp_path))
            health = ask_admin(service, "/health/ready").json
            (backend,) = ask_admin(service, "/status.json").json["backends"]
            value = scrape(service)
        assert health["degraded"] == ["backend crm"]
        assert "cannot be reached" in backend["problem"]
        assert value("idv_degraded", part="backend crm") == 1
        eventually(lambda: Client(service.port).by_input("@alice").status == 200)
        eventually(lambda: is_ready(service))


def test_a_file_that_is_gone_is_visible_without_a_lookup(sqlite: Source, tmp_path: Path) -> None:
    with serving_from(sqlite, tmp_path) as service:
        with sqlite.stopped():
            eventually(lambda: not is_ready(service))
            (backend,) = ask_admin(service, "/status.json").json["backends"]
        assert backend["problem"]
        eventually(lambda: is_ready(service))


def test_a_source_that_is_connected_again_is_available_without_a_lookup(
    postgres: Source, tmp_path: Path
) -> None:
    """Also one whose circuit breaker has opened; else a replica without traffic stays degraded."""
    with serving_from(postgres, tmp_path) as service:
        client = Client(service.port)
        with postgres.stopped():
            for name in "bcdefghijk":
                assert client.by_input(f"@{name}").status == 503
            assert not is_ready(service)
        eventually(lambda: is_ready(service))
        (backend,) = ask_admin(service, "/status.json").json["backends"]
        assert (backend["available"], backend["failing_since"]) == (True, None)
