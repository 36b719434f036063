"""``logging.health_checks``: probes of a load balancer would be most of the access log."""

from __future__ import annotations

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
    config = CONFIG.replace("port: 0,", "port: 0, health_path: /healthz,") + USERS
    config += f"logging: {{format: json, health_checks: {setting}}}\n"
    with running(write_config(tmp_path, config)) as service:
        client = Client(service.port)
        assert client.send("GET", "/healthz", {"Host": "x"}).status == 200
        assert client.send("PUT", "/healthz", {"Host": "x"}).status == 405
        assert client.by_input("@alice").status == 200
        eventually(lambda: '"route":"identify/url"' in service.read_log())
        lines = [json.loads(line) for line in service.read_log().splitlines()]
    assert [line["status"] for line in lines if line.get("route") == "health"] == logged
