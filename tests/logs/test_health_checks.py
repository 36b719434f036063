"""``logging.health_checks``: probes of a load balancer would be most of the access log."""

import json
from pathlib import Path

import pytest

from support.processes.process import eventually, running
from support.processes.service import CONFIG, USERS, Client, write_config

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("setting", "logged"), [("true", [200, 405]), ("false", [405])])
def test_successful_health_checks_are_logged_if_configured(
    tmp_path: Path, setting: str, logged: list[int]
) -> None:
    server = "port: 0, base_path: /x, health_path: /health.z,"
    config = CONFIG.replace("port: 0,", server) + USERS
    config += f"logging: {{format: json, health_checks: {setting}}}\n"
    with running(write_config(tmp_path, config)) as service:
        client = Client(service.port)
        reply = client.send("GET", "/health.z", {"Host": "x"})
        assert (reply.status, reply.body) == (200, b'{"status":"ok"}')
        assert reply.headers["content-type"] == "application/json"
        assert "etag" not in reply.headers
        for path, allowed in (("/health.z", "GET, HEAD"), ("/x/api/v1/identify/url", "POST")):
            wrong = client.send("PATCH", path, {"Host": "x"})
            assert (wrong.status, wrong.headers["allow"]) == (405, allowed)
        assert client.send("GET", "/health-z", {"Host": "x"}).status == 404
        eventually(lambda: '"route":"identify/url"' in service.read_log())
        lines = [json.loads(line) for line in service.read_log().splitlines()]
    assert {each["method"] for each in lines if each.get("status") == 405} == {"PATCH"}
    assert [line["status"] for line in lines if line.get("route") == "health"] == logged
