"""A canary that is lost is shown to the operator, and users who are found are served as before."""

import json
from pathlib import Path

import pytest

from support.http.metrics import scrape
from support.processes.admin import WITH_ADMIN, ask_admin
from support.processes.process import eventually
from support.processes.service import FIXTURE, Client, serving
from tornado_idv.service.service import Service

pytestmark = pytest.mark.slow

BIRD = '  - {nickname: "@idv-canary", card_number: "9000000000000001", plan: Free}\n'
CANARY = 'canary: {nickname: "@idv-canary", card_number: "9000000000000001", max_age: 0s}'
CONFIG = WITH_ADMIN.replace("path: users.yaml", f"path: users.yaml, {CANARY}") + (
    "cache: {negative_ttl: 0s, failure_memo: 0s}\n"
)
PROBLEM = 'canary @idv-canary is not found: its "not found" is not trusted'


def found(service: Service) -> dict[str, float]:
    value = scrape(service)
    kinds = ("nickname", "card_number")
    return {kind: value("idv_canary_found", backend="users", by=kind) for kind in kinds}


def state(service: Service) -> str:
    return str(ask_admin(service, "/health/ready").json["status"])


def test_lost_canary_makes_the_service_degraded_without_traffic(tmp_path: Path) -> None:
    """It is looked up at the start, and a while after that; a reload keeps what is known."""
    assert CANARY in CONFIG
    with serving(CONFIG, tmp_path) as service:
        eventually(lambda: state(service) == "degraded")
        (backend,) = ask_admin(service, "/status.json").json["backends"]
        assert (backend["available"], backend["problem"]) == (True, PROBLEM)
        assert backend["canaries"] == {"nickname": False, "card_number": False}
        assert found(service) == {"nickname": 0, "card_number": 0}
        assert scrape(service)("idv_degraded", part="backend users") == 1
        (tmp_path / "config.yaml").write_text(CONFIG.replace("0s}", "1s}"), encoding="utf-8")
        assert ask_admin(service, "/reload", {}).status == 200
        eventually(lambda: state(service) == "degraded")


def test_lost_canary_makes_404_a_503_until_it_is_found_again(tmp_path: Path) -> None:
    (tmp_path / "users.yaml").write_text(FIXTURE + BIRD, encoding="utf-8")
    with serving(CONFIG, tmp_path) as service:
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
        assert "9000000000000001" not in json.dumps(ask_admin(service, "/status.json").json)

        (tmp_path / "users.yaml").write_text(FIXTURE + BIRD, encoding="utf-8")
        eventually(lambda: client.by_input("@nobody").status == 404)
        assert client.by_card("4999").status == 404
        eventually(lambda: state(service) == "ready")
        assert found(service) == {"nickname": 1, "card_number": 1}
