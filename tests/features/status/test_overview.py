"""The overview of a service, as JSON and as text."""

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from support.processes.admin import WITH_ADMIN, ask_admin
from support.processes.process import Invoke, eventually
from support.processes.service import Client, serving
from tornado_idv.admin.report import PartReport
from tornado_idv.cli.admin_client import AdminListener
from tornado_idv.keys.token import issue
from tornado_idv.log_format import format_time
from tornado_idv.service.service import Service


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
        "shadows": [source | shadow],
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
        "keys:         2, the next expires at E",
        "snapshot:     full",
        "connections:  3",
        "log lines:    5 dropped",
        "last reload:  ok at T; after a restart: a, b",
        "last reload:  ok at T: bad",
    }
    assert not [line for line in lines if line.endswith("None")]
