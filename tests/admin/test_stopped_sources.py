"""A backend whose server is stopped is degraded, until it is connected again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from support.databases.postgres_server import ALICE, Database
from support.databases.postgres_server import stopped as stopped_postgres
from support.databases.redis_server import running_server
from support.http.metrics import scrape
from support.processes.admin import ask_admin
from support.processes.process import eventually
from support.processes.service import CONFIG, Client, serving
from tornado_idv.service.service import Service

pytestmark = pytest.mark.slow


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


@pytest.fixture(params=["postgres", "redis"])
def server(request: pytest.FixtureRequest) -> Source:
    found: Source = request.getfixturevalue(request.param)
    return found


def serving_from(source: Source, folder: Path) -> AbstractContextManager[Service]:
    backend = f"  - {{name: crm, {source.options}, breaker: {{open_for: 100ms}}}}\n"
    return serving(f"{CONFIG}{backend}admin: {{port: 0}}\n", folder)


def is_ready(service: Service) -> bool:
    return bool(ask_admin(service, "/health/ready").json["status"] == "ready")


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
