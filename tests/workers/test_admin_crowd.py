"""Clients that connect to the admin listener and send nothing; real processes."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.databases.key_stores import make_store, open_store
from support.processes.admin import admin_port, ask_admin
from support.processes.process import children, eventually, running
from support.processes.process_limits import descriptors
from support.processes.process_usage import open_descriptors, wait_until_idle
from support.processes.service import Client, lookup_request, write_config

pytestmark = pytest.mark.slow

DESCRIPTORS = 256
SILENT = 300
CONFIG = """\
profile_sites: [https://profiles.example]
server: {{port: 0, workers: {workers}}}
admin: {{port: 0}}
auth: {{store: keys.db}}
backends: [{{name: users, kind: yaml, path: users.yaml}}]
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_silent_clients_of_the_admin_listener_stop_nothing(tmp_path: Path, workers: int) -> None:
    """Lookups are answered, a revoked key is rejected, and no process is busy."""
    token = make_store(tmp_path / "keys.db", "shop")["shop"]
    config = write_config(tmp_path, CONFIG.format(workers=workers))
    with ExitStack() as stack:
        with descriptors(DESCRIPTORS):
            service = stack.enter_context(running(config))
        client, address = Client(service.port), ("127.0.0.1", admin_port(service))

        def lookup() -> int:
            (reply,) = client.raw(lookup_request("@alice", token))
            return reply.status

        for _ in range(SILENT):
            stack.enter_context(socket.create_connection(address, timeout=10))
        assert lookup() == 200
        assert ask_admin(service, "/health/ready").status == 200
        with open_store(tmp_path / "keys.db") as store:
            store.revoke("shop", time.time())
        eventually(lambda: lookup() == 401)
        pids = [service.process.pid, *children(service.process.pid)]
        assert max(map(open_descriptors, pids)) < DESCRIPTORS // 2
        wait_until_idle(pids)
        service.stop()
    assert "limit of 64 connections of the admin listener reached" in service.read_log()
    assert "Too many open files" not in service.read_log()
