"""Health, cache purge, explain and reload, over HTTP."""

import json
import logging
from importlib.metadata import version
from pathlib import Path

import pytest

from support.databases.key_stores import make_store
from support.http.metrics import scrape
from support.processes.admin import WITH_ADMIN, ask_admin
from support.processes.process import eventually, running
from support.processes.service import KEY, Client, serving, write_config
from tornado_idv.admin.operations import OperationFailed
from tornado_idv.admin.report import PartReport
from tornado_idv.service.service import Service


def lookups(service: Service) -> dict[str, int]:
    """Return the number of lookups by what the cache contributed."""
    counts: dict[str, int] = ask_admin(service, "/status.json").json["cache"]["lookups"]
    return counts


def test_new_service_is_alive_and_ready(service: Service) -> None:
    assert ask_admin(service, "/health/live").json == {"status": "ok"}
    assert ask_admin(service, "/health/ready").json == {"status": "ready", "degraded": []}


def test_key_store_that_cannot_be_read_is_degraded(tmp_path: Path) -> None:
    path = tmp_path / "keys.db"
    make_store(path, "shop")
    config = WITH_ADMIN.replace("auth:\n", "auth:\n  store: keys.db\n")
    with serving(config, tmp_path) as service:
        assert ask_admin(service, "/health/ready").json["status"] == "ready"
        path.write_bytes(b"no database" * 1000)
        eventually(lambda: ask_admin(service, "/health/ready").json["status"] == "degraded")
        reply = ask_admin(service, "/health/ready?verbose")
    assert (reply.status, reply.json["degraded"]) == (200, ["key store"])
    assert reply.json["key_store"]["error"]


@pytest.mark.parametrize(
    ("record", "dropped"),
    [
        ({"nickname": "alice"}, True),
        ({"nickname": "@alice"}, True),
        ({"card_number": "4000123412341234"}, True),
        ({"backend": "users"}, True),
        ({"all": True}, True),
        ({"nickname": "@bob"}, False),
        ({"card_number": "5555"}, False),
    ],
    ids=str,
)
def test_purge_drops_the_answers_asked_for(
    service: Service,
    record: dict[str, object],
    dropped: bool,  # noqa: FBT001
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = Client(service.port)
    client.by_input("@alice")
    with caplog.at_level(logging.INFO, "tornado_idv.audit"):
        reply = ask_admin(service, "/cache/purge", record)
    assert (reply.status, reply.json["status"]) == (200, "ok")
    assert client.by_input("@alice").status == 200
    assert lookups(service)["miss"] == (2 if dropped else 1)
    (line,) = [each for each in caplog.records if each.name == "tornado_idv.audit"]
    assert line.getMessage() == "cache purged"
    assert vars(line)["purged"] == reply.json["purged"]
    assert vars(line).get("backend") == record.get("backend")
    assert "alice" not in str(vars(line))
    assert "4000" not in str(vars(line)["purged"])


def test_purge_that_is_still_pending_is_in_the_audit_log(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def purge(*_: object) -> bool:
        return False

    monkeypatch.setattr(Service, "purge", purge)
    with caplog.at_level(logging.INFO, "tornado_idv.audit"):
        assert ask_admin(service, "/cache/purge", {"all": True}).json["code"] == "purge_pending"
    assert "cache purged" in caplog.messages


def test_explain_shows_what_is_cached(service: Service) -> None:
    """And what each backend says, which is not cached."""
    client = Client(service.port)
    explained = ask_admin(service, "/explain", {"input": "@alice"}).json
    (call,) = explained["backends"]
    assert call.pop("ms") >= 0
    assert call == {"backend": "users", "outcome": "found"}
    assert (explained["status"], explained["result"]) == ("ok", "found")
    assert ask_admin(service, "/explain", {"input": "@alice"}).json["cache"] == "absent"
    client.by_input("@alice")
    client.by_input("@carol")
    assert ask_admin(service, "/explain", {"input": "@alice"}).json["cache"] == "found"
    assert ask_admin(service, "/explain", {"input": "@carol"}).json["cache"] == "not_found"
    assert "4000" not in ask_admin(service, "/explain", {"input": "@alice"}).body.decode()


@pytest.mark.parametrize(
    ("path", "record"),
    [
        ("/cache/purge", {}),
        ("/cache/purge", []),
        ("/cache/purge", {"all": False}),
        ("/cache/purge", {"all": True, "backend": "users"}),
        ("/cache/purge", {"nickname": "@alice", "card_number": "1"}),
        ("/cache/purge", {"nickname": "@"}),
        ("/cache/purge", {"nickname": 1}),
        ("/cache/purge", {"card_number": "4000-1"}),
        ("/cache/purge", {"backend": "other"}),
        ("/explain", {}),
        ("/explain", {"input": "alice"}),
        ("/explain", {"input": 1}),
        ("/explain", {"card_number": "x"}),
        ("/explain", {"input": "@alice", "card_number": "5555"}),
    ],
    ids=str,
)
def test_body_of_anything_else_is_rejected(service: Service, path: str, record: object) -> None:
    reply = ask_admin(service, path, record)
    assert (reply.status, reply.json["code"]) == (422, "invalid_format")


def test_only_an_unexpected_failure_is_logged(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    errors = iter([OperationFailed("worker 1: no response"), ValueError("canary")])

    async def fail(*_: object) -> None:
        raise next(errors)

    monkeypatch.setattr(Service, "explain", fail)
    replies = [ask_admin(service, "/explain", {"input": "@alice"}) for _ in range(2)]
    codes = [(reply.status, reply.json["code"]) for reply in replies]
    assert codes == [(503, "worker_failed"), (500, "internal")]
    (logged,) = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert logged.startswith("unhandled exception:\n")
    assert "canary" not in logged


def test_draining_service_is_draining_even_if_degraded(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "draining", True)
    monkeypatch.setattr(service, "sockets", PartReport("removed", 0.0))
    reply = ask_admin(service, "/health/ready")
    expected = {"status": "draining", "degraded": ["unix sockets"]}
    assert (reply.status, reply.json) == (503, expected)


@pytest.mark.slow
def test_draining_service_is_not_ready_and_still_serves(tmp_path: Path) -> None:
    """From the signal on; the admin listener responds until the end."""
    text = WITH_ADMIN.replace("port: 0,", "port: 0, drain: {delay: 1500ms},", 1)
    with running(write_config(tmp_path, f"{text}logging: {{format: json}}\n")) as process:
        assert ask_admin(process, "/health/ready").status == 200
        process.send_signal()
        eventually(lambda: ask_admin(process, "/health/ready").status == 503)
        assert ask_admin(process, "/health/ready").json["status"] == "draining"
        assert ask_admin(process, "/health/live").status == 200
        assert Client(process.port).by_input("@alice").status == 200
        assert process.wait() == 0
    lines = [json.loads(line) for line in process.read_log().splitlines()]
    started, stopped = (line for line in lines if line["logger"] == "tornado_idv.audit")
    assert (stopped["event"], stopped["drained"]) == ("stopped", True)
    expected = {
        "event": "started",
        "version": version("tornado-idv"),
        "listen": [f"127.0.0.1:{process.port}"],
        "backends": ["users"],
        "keys": 3,
    }
    assert {name: started[name] for name in expected} == expected


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
