"""Reload by the admin listener, and what it reports of it."""

import logging
from pathlib import Path

import pytest

from support.http.metrics import scrape
from support.processes.admin import WITH_ADMIN, ask_admin
from support.processes.service import KEY, Client
from tornado_idv.service.service import Service


def test_reload_applies_the_file(
    service: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = scrape(service)
    assert before("idv_config_last_reload_successful") == 1
    Client(service.port).by_input("@alice")
    assert ask_admin(service, "/status.json").json["last_reload"] is None
    text = WITH_ADMIN.replace("https://profiles.example", "https://other.example")
    (tmp_path / "config.yaml").write_text(f"{text}logging: {{level: debug}}\n")
    with caplog.at_level(logging.INFO):
        reply = ask_admin(service, "/reload", {})
    assert (reply.status, reply.json) == (200, {"status": "ok", "needs_restart": ["logging.level"]})
    response = Client(service.port).by_input("@alice")
    assert b"https://other.example/m/alice" in response.body
    explained = ask_admin(service, "/explain", {"input": "https://other.example/m/alice"})
    assert (explained.status, explained.json["result"]) == (200, "found")
    last = ask_admin(service, "/status.json").json["last_reload"]
    assert last.pop("time").endswith("Z")
    assert last == {"result": "ok", "problem": None, "needs_restart": ["logging.level"]}
    after = scrape(service)
    assert [value("idv_reloads_total", result="ok") for value in (before, after)] == [0, 1]
    timestamp = "idv_config_last_reload_success_timestamp_seconds"
    assert before(timestamp) < after(timestamp)
    assert after("idv_config_last_reload_successful") == 1
    assert after("idv_requests_total", operation="url", code="ok") == 2  # counters survive
    (audit,) = [vars(each) for each in caplog.records if each.name == "tornado_idv.audit"]
    assert (audit["msg"], audit["result"], audit["trigger"]) == ("reloaded", "ok", "admin")
    assert (audit["client"], audit["key"]) == ("127.0.0.1", None)
    assert audit["needs_restart"] == ["logging.level"]


def test_invalid_file_is_rejected_with_its_problems(service: Service, tmp_path: Path) -> None:
    """None of which has a value of the file, which may be a secret."""
    path = tmp_path / "config.yaml"
    path.write_text(WITH_ADMIN.replace(KEY, "canary secret") + "bogus: canary\n")
    reply = ask_admin(service, "/reload", {})
    assert (reply.status, reply.json["code"]) == (422, "invalid_configuration")
    first, *_, last = reply.json["problems"]
    assert first.startswith(f"{path}:5:27: auth.keys[0].token: ")
    assert last.startswith(f"{path}:11:1: bogus: unknown setting")
    assert "canary" not in reply.body.decode()
    assert ask_admin(service, "/health/ready").json["status"] == "ready"
    status = ask_admin(service, "/status.json").json["last_reload"]
    assert (status["result"], status["problem"]) == ("failed", first)
    assert scrape(service)("idv_reloads_total", result="failed") == 1
    assert scrape(service)("idv_config_last_reload_successful") == 0


def test_backend_that_cannot_be_opened_is_503(service: Service, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(WITH_ADMIN.replace("users.yaml", "absent.yaml"))
    reply = ask_admin(service, "/reload", {})
    assert (reply.status, reply.json["code"]) == (503, "reload_failed")
    assert reply.json["problems"] == [
        f"{tmp_path / 'absent.yaml'}: cannot be read: No such file or directory"
    ]
    assert Client(service.port).by_input("@alice").status == 200


def test_number_of_users_is_not_shown_where_only_the_source_knows_it(
    service: Service, tmp_path: Path
) -> None:
    config = WITH_ADMIN.replace(
        "kind: yaml, path: users.yaml", "kind: upstream, base_url: 'http://127.0.0.1:1'"
    )
    (tmp_path / "config.yaml").write_text(config)
    assert ask_admin(service, "/reload", {}).status == 200
    assert "idv_fixture_users{" not in ask_admin(service, "/metrics").body.decode()
    assert ask_admin(service, "/status.json").json["backends"][0]["users"] is None
