"""The metrics count what was requested over HTTP, in formats that parsers accept."""

import re
import resource
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from math import isnan
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from idv_yaml.backend import YamlBackend
from support.http.metrics import scrape
from support.processes.admin import WITH_ADMIN, ask_admin
from support.processes.proxies import find_tool
from support.processes.service import CONFIG, KEY, Client, lookup_request, serving
from tornado_idv.keys import ring
from tornado_idv.keys.token import issue
from tornado_idv.service.service import Service

pytestmark = pytest.mark.slow

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.mark.parametrize("fast_path", ["true", "false"])
def test_responses_are_counted_by_operation_and_code(tmp_path: Path, fast_path: str) -> None:
    """Also those of the fast path, and those that no handler sees."""
    server = f"port: 0, health_path: /up, fast_path: {fast_path},"
    config = WITH_ADMIN.replace("port: 0,", server, 1)
    with serving(config, tmp_path) as service:
        client = Client(service.port)
        for _ in range(5):
            assert client.by_input("@alice").status == 200
        for _ in range(4):
            assert client.by_input("@bob").status == 404
        assert client.by_card("4000123412341234").status == 200
        assert client.by_card("x").status == 422
        assert client.send("GET", "/", {"Host": "x"}).status == 404
        assert client.raw(b"GET\r\n\r\n")[0].status == 400
        for path in ("/up", "/api/v1/key"):
            assert client.send("POST", path, {"Host": "x"}, b"{}").status == 405
        value = scrape(service)
        requests = ask_admin(service, "/status.json").json["requests"]
    assert requests["none"]["method_not_allowed"] == 2
    for operation, code, count in [
        ("url", "ok", 5),
        ("url", "not_found", 4),
        ("card", "ok", 1),
        ("card", "invalid_format", 1),
        ("none", "no_such_route", 1),
        ("none", "bad_request", 1),
        ("none", "method_not_allowed", 2),
    ]:
        assert value("idv_requests_total", operation=operation, code=code) == count
    for operation, result, count in [
        ("url", "found", 5),
        ("url", "not_found", 4),
        ("card", "rejected", 1),
        ("none", "rejected", 4),
    ]:
        labels = {"operation": operation, "result": result}
        assert value("idv_request_duration_seconds_count", **labels) == count
        assert value("idv_request_duration_seconds_bucket", le="2.5", **labels) == count
        assert 0 < value("idv_request_duration_seconds_sum", **labels) < 5
    assert value("idv_cache_lookups_total", result="hit") == 7
    assert value("idv_cache_lookups_total", result="miss") == 3
    assert value("idv_cache_entries", kind="found") == 2
    assert value("idv_cache_entries", kind="negative") == 1
    assert value("idv_backend_requests_total", backend="users", outcome="found") == 2
    assert value("idv_backend_requests_total", backend="users", outcome="not_found") == 1
    assert value("idv_backend_requests_total", backend="users", outcome="cancelled") == 0
    assert value("idv_backend_duration_seconds_count", backend="users") == 3


def test_rejected_keys_and_limits_are_counted_by_reason(tmp_path: Path) -> None:
    with serving(f"{WITH_ADMIN}limits: {{requests: 2/hour}}\n", tmp_path) as service:
        client = Client(service.port)
        path = "/api/v1/identify/url"
        assert client.send("POST", path, {"Host": "x"}, b'{"input": "@alice"}').status == 401
        for token, status in [("x" * 20, 401), ("", 401), (KEY, 200), (KEY, 200), (KEY, 429)]:
            fields = {"Host": "x", "Authorization": f"Bearer {token}"}
            assert client.send("POST", path, fields, b'{"input": "@alice"}').status == status
        service.logs.writer.dropped = 3
        value = scrape(service)
    assert value("idv_log_dropped_total") == 3
    assert value("idv_auth_failures_total", reason="unknown") == 1
    assert value("idv_auth_failures_total", reason="malformed") == 1
    assert value("idv_auth_failures_total", reason="missing") == 1
    assert {value("idv_auth_failures_total", reason=r) for r in ("disabled", "not_valid_yet")} == {
        0
    }
    for limit, count in [("requests", 1), ("misses", 0), ("failed_auth", 0)]:
        assert value("idv_rate_limited_total", limit=limit) == count
    assert value("idv_key_expiry_timestamp_seconds", key="expired") == 1577836800


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("user_count", property(lambda _: 1 // 0), "ZeroDivisionError"),
        ("problem", property(lambda _: 1 // 0), "ZeroDivisionError"),
        ("problem", property(lambda _: Path("a lost file")), "a lost file"),
        ("user_count", lambda _: 1, "TypeError"),
        ("servers", property(lambda _: ["db2:5432"]), "ValueError"),
    ],
    ids=["user_count", "problem", "no text", "not a property", "servers"],
)
def test_plugin_that_cannot_describe_itself_leaves_the_service_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: object, error: str
) -> None:
    monkeypatch.setattr(YamlBackend, name, value)
    with serving(WITH_ADMIN, tmp_path) as service:
        ready = ask_admin(service, "/health/ready")
        (backend,) = ask_admin(service, "/status.json").json["backends"]
        assert (ready.status, ready.json["status"]) == (200, "degraded")
        assert error in backend["problem"]
        assert scrape(service)("idv_degraded", part="backend users") == 1


def test_servers_of_a_backend_are_shown_with_their_roles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = [("db1:5432", "standby"), ("db2:5432", "standby")]
    monkeypatch.setattr(YamlBackend, "servers", property(lambda _: servers))
    with serving(WITH_ADMIN, tmp_path) as service:
        (backend,) = ask_admin(service, "/health/ready?verbose").json["backends"]
        assert backend["servers"] == [{"server": each, "role": role} for each, role in servers]
        for server, role in servers:
            value = scrape(service)
            assert value("idv_backend_server", backend="users", server=server, role=role) == 1


def test_failing_backend_is_counted_and_its_breaker_shown(tmp_path: Path) -> None:
    """A port that refuses connections; after two failures the breaker is open."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    backend = (
        f"  - {{name: crm, kind: upstream, base_url: 'http://127.0.0.1:{port}',"
        " breaker: {failures: 2, open_for: 1h}}\n"
    )
    with serving(f"{CONFIG}{backend}admin: {{port: 0}}\n", tmp_path) as service:
        client = Client(service.port)
        assert client.by_input("@a").status == 503
        (crm,) = ask_admin(service, "/status.json").json["backends"]
        assert (crm["available"], crm["breaker"], crm["next_probe_s"]) == (False, "closed", None)
        for name in ("@b", "@c"):
            assert client.by_input(name).status == 503
        value = scrape(service)
        ready = ask_admin(service, "/health/ready?verbose")
    assert value("idv_backend_requests_total", backend="crm", outcome="unavailable") == 2
    assert value("idv_backend_requests_total", backend="crm", outcome="rejected") == 1
    assert value("idv_breaker_state", backend="crm") == 2
    assert value("idv_backend_in_flight", backend="crm") == 0
    failed = {"operation": "url", "result": "failed"}
    assert value("idv_request_duration_seconds_count", **failed) == 3
    # A remote directory that is down is no fault of this instance.
    assert (ready.status, ready.json["status"]) == (200, "degraded")
    assert ready.json["degraded"] == ["backend crm"]
    (crm,) = ready.json["backends"]
    assert (crm["name"], crm["available"], crm["breaker"]) == ("crm", False, "open")
    assert 2880 <= crm["next_probe_s"] <= 4320
    assert crm["failing_since"].endswith("Z")
    assert crm["last_error_at"].endswith("Z")
    assert crm["last_error"]
    assert value("idv_degraded", part="backend crm") == 1


def test_evictions_and_open_connections_are_shown(tmp_path: Path) -> None:
    config = f"{WITH_ADMIN}cache: {{max_negative_entries: 2}}\n"
    with serving(config, tmp_path) as service, Client(service.port).connection() as connection:
        for name in "abcde":
            connection.send(lookup_request(f"@{name}"))
            assert connection.read_reply()
        value = scrape(service)
        assert ask_admin(service, "/status.json").json["cache"]["evictions"] == 3
    assert value("idv_cache_evictions_total") == 3
    assert value("idv_connections", state="idle") == 1


def test_connections_above_the_limit_are_counted_as_their_own_operation(tmp_path: Path) -> None:
    """Which alerts do not leave out, as they do health checks. All are exposed before the first."""
    config = WITH_ADMIN.replace("port: 0,", "port: 0, max_connections: 2,", 1)
    counted = {"operation": "connection", "code": "overloaded"}
    with serving(config, tmp_path) as service, ExitStack() as stack:
        client = Client(service.port)
        text = ask_admin(service, "/metrics").body.decode()
        assert 'operation="connection"' in text
        words = re.findall(r'^idv_(?!requests)\w+_total{.*"(\w+)"} 0', text, re.MULTILINE)
        reasons = "missing malformed unknown expired not_valid_yet revoked disabled"
        calls = "found not_found unavailable broken rejected cancelled"
        lookups = "hit shared stale coalesced miss ok failed ok failed"
        assert words == f"{reasons} requests misses failed_auth {calls} {lookups}".split()
        for _ in range(2):
            assert stack.enter_context(client.connection())
        replies = [client.until_closed(b"")[0] for _ in range(3)]
        assert {(each.status, each.code) for each in replies} == {(503, "overloaded")}
        value = scrape(service)
        status = ask_admin(service, "/status.json").json
    assert value("idv_requests_total", **counted) == 3
    assert value("idv_connections_limit") == 2
    assert status["requests"] == {"connection": {"overloaded": 3}}


@pytest.mark.skipif(sys.platform != "linux", reason="the metrics of processes are those of /proc")
def test_metrics_of_the_process_are_exposed(service: Service) -> None:
    value = scrape(service)
    assert 0 < value("process_start_time_seconds") < time.time()
    assert value("process_resident_memory_bytes") > 10e6
    assert value("process_virtual_memory_bytes") > value("process_resident_memory_bytes")
    assert value("process_max_fds") == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    opened = value("process_open_fds")
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(socket.socket())
        assert scrape(service)("process_open_fds") >= opened + 15
    before = value("process_cpu_seconds_total")
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    assert scrape(service)("process_cpu_seconds_total") > before


def test_event_loop_lag_is_the_longest_since_the_last_scrape(service: Service) -> None:
    service.counters.max_lag = 1000.0
    assert {ask_admin(service, each).status for each in ("/status.json", "/health/ready")} == {200}
    assert scrape(service)("idv_event_loop_lag_seconds") == 1000.0
    assert scrape(service)("idv_event_loop_lag_seconds") < 1000.0


def test_keys_that_have_expired_give_way_to_those_that_expire_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring, "_MAX_SHOWN", 1)
    later = f"    - {{id: later, token: {issue('later')}, expires: 2100-01-01T00:00:00Z}}\n"
    with serving(WITH_ADMIN.replace("backends:\n", f"{later}backends:\n"), tmp_path) as service:
        value = scrape(service)
    assert value("idv_key_expiry_timestamp_seconds", key="later") == 4102444800
    assert isnan(value("idv_key_expiry_timestamp_seconds", key="expired"))


def test_empty_fixture_is_shown_and_a_shared_cache_only_if_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "users.yaml").write_text("users: []\n", encoding="utf-8")
    with serving(WITH_ADMIN, tmp_path) as service:
        text = ask_admin(service, "/metrics").body.decode()
    assert 'idv_fixture_users{backend="users"} 0.0\n' in text
    assert "\nidv_shared_cache_" not in text


def test_openmetrics_is_sent_where_it_is_accepted(service: Service) -> None:
    Client(service.port).by_input("@alice")
    plain, other = (
        ask_admin(service, "/metrics"),
        ask_admin(service, "/metrics", Accept=OPENMETRICS),
    )
    assert plain.headers["Content-Type"].startswith("text/plain; version=")
    assert other.headers["Content-Type"].startswith("application/openmetrics-text; version=1.")
    assert other.body.endswith(b"# EOF\n")
    names = {family.name for family in parse_openmetrics(other.body.decode())}
    assert {"idv_requests", "idv_build", "idv_request_duration_seconds"} <= names


def test_promtool_accepts_the_metrics(service: Service) -> None:
    promtool = find_tool("promtool")
    Client(service.port).by_input("@alice")
    text = ask_admin(service, "/metrics").body
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, timeout=20, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
