"""The audit log of a real process."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from support.processes.process import running
from support.processes.service import CONFIG, USERS, write_config


@pytest.mark.slow
def test_start_and_stop_are_in_the_audit_log(tmp_path: Path) -> None:
    config = f"{CONFIG}{USERS}logging: {{level: error, format: json}}\n"
    with running(write_config(tmp_path, config)) as service:
        service.stop()
        started, stopped = map(json.loads, service.read_log().splitlines())
    for line in (started, stopped):
        assert line.pop("timestamp").endswith("Z")
        assert (line.pop("level"), line.pop("logger")) == ("info", "tornado_idv.audit")
    assert started == {
        "event": "started",
        "version": version("tornado-idv"),
        "listen": [f"127.0.0.1:{service.port}"],
        "backends": ["users"],
        "keys": 3,
    }
    assert stopped == {"event": "stopped", "drained": True}
