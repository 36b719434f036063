"""A backend whose server is stopped is degraded, until it is connected again."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support.databases.postgres_server import ALICE, Database, stopped
from support.http.metrics import scrape
from support.processes.admin import ask_admin
from support.processes.process import eventually
from support.processes.service import CONFIG, Client, serving
from tornado_idv.service.service import Service


def status(service: Service) -> Any:
    return ask_admin(service, "/status.json").json


@pytest.mark.slow
def test_stopped_server_degrades_the_service_until_it_is_connected_without_a_lookup(
    database: Database, tmp_path: Path
) -> None:
    """Also with an open circuit breaker; else a replica without traffic would stay degraded."""
    database.write(ALICE)
    options = f"kind: postgres, dsn: '{database.dsn}', breaker: {{open_for: 100ms}}"
    config = f"{CONFIG}  - {{name: crm, {options}}}\nadmin: {{port: 0}}\n"
    with ExitStack() as running:
        with stopped(database):
            service = running.enter_context(serving(config, tmp_path))
            assert status(service)["degraded"] == ["backend crm"]
            assert "cannot be reached" in status(service)["backends"][0]["problem"]
            assert scrape(service)("idv_degraded", part="backend crm") == 1
            for name in "bcdefghijk":
                assert Client(service.port).by_input(f"@{name}").status == 503
        eventually(lambda: status(service)["status"] == "ready")
        (backend,) = status(service)["backends"]
        assert (backend["available"], backend["failing_since"]) == (True, None)
