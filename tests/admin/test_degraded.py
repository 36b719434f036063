"""What degrades a service is shown to the operator, and users who are found are served as before.

That is a canary that is lost, and a server that is stopped, until it is connected again.
"""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support.databases.postgres_server import ALICE, Database, stopped
from support.http.metrics import scrape
from support.processes.admin import WITH_ADMIN, ask_admin
from support.processes.process import eventually
from support.processes.service import CONFIG, FIXTURE, Client, serving
from tornado_idv.service.service import Service

pytestmark = pytest.mark.slow

BIRD = '  - {nickname: "@idv-canary", card_number: "9000000000000001", plan: Free}\n'
CANARY = 'canary: {nickname: "@idv-canary", card_number: "9000000000000001", max_age: 0s}'
WITH_CANARY = WITH_ADMIN.replace("path: users.yaml", f"path: users.yaml, {CANARY}") + (
    "cache: {negative_ttl: 0s, failure_memo: 0s}\n"
)
PROBLEM = 'canary @idv-canary is not found: its "not found" is not trusted'


def found(service: Service) -> dict[str, float]:
    value = scrape(service)
    kinds = ("nickname", "card_number")
    return {kind: value("idv_canary_found", backend="users", by=kind) for kind in kinds}


def status(service: Service) -> Any:
    return ask_admin(service, "/status.json").json


def state(service: Service) -> str:
    return str(ask_admin(service, "/health/ready").json["status"])


def test_lost_canary_makes_the_service_degraded_without_traffic(tmp_path: Path) -> None:
    """It is looked up at the start, and a while after that; a reload keeps what is known."""
    assert CANARY in WITH_CANARY
    with serving(WITH_CANARY, tmp_path) as service:
        eventually(lambda: state(service) == "degraded")
        (backend,) = status(service)["backends"]
        assert (backend["available"], backend["problem"]) == (True, PROBLEM)
        assert backend["canaries"] == {"nickname": False, "card_number": False}
        assert found(service) == {"nickname": 0, "card_number": 0}
        assert scrape(service)("idv_degraded", part="backend users") == 1
        (tmp_path / "config.yaml").write_text(WITH_CANARY.replace("0s}", "1s}"), encoding="utf-8")
        assert ask_admin(service, "/reload", {}).status == 200
        eventually(lambda: state(service) == "degraded")


def test_lost_canary_makes_404_a_503_until_it_is_found_again(tmp_path: Path) -> None:
    (tmp_path / "users.yaml").write_text(FIXTURE + BIRD, encoding="utf-8")
    with serving(WITH_CANARY, tmp_path) as service:
        client = Client(service.port)
        assert client.by_input("@nobody").status == 404
        assert client.by_card("4999").status == 404
        assert client.by_input("@idv-canary").status == 200
        assert found(service) == {"nickname": 1, "card_number": 1}
        explained = ask_admin(service, "/explain", {"input": "@nobody"}).json
        assert explained["result"] == "not_found"
        (call,) = explained["backends"]
        assert call["outcome"] == "not known here; canary @idv-canary found 0.0 s ago"

        (tmp_path / "users.yaml").write_text(FIXTURE, encoding="utf-8")
        eventually(lambda: client.by_input("@nobody").status == 503)
        response = client.by_card("4999")
        assert (response.status, b"backend_unavailable" in response.body) == (503, True)
        assert client.by_input("@alice").status == 200
        eventually(lambda: state(service) == "degraded")
        assert found(service) == {"nickname": 0, "card_number": 0}
        explained = ask_admin(service, "/explain", {"input": "@nobody"}).json
        assert (explained["result"], explained["backends"][0]["outcome"]) == (
            "undetermined",
            PROBLEM,
        )
        assert "9000000000000001" not in json.dumps(status(service))

        (tmp_path / "users.yaml").write_text(FIXTURE + BIRD, encoding="utf-8")
        eventually(lambda: client.by_input("@nobody").status == 404)
        assert client.by_card("4999").status == 404
        eventually(lambda: state(service) == "ready")
        assert found(service) == {"nickname": 1, "card_number": 1}


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
