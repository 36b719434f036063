"""Clients that connect to the admin listener and send nothing."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.processes.admin import WITH_ADMIN, admin_port, ask_admin
from support.processes.service import serving_here


async def test_silent_clients_of_the_admin_listener_stop_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They take few descriptors from lookups, and the listener still responds."""
    async with serving_here(WITH_ADMIN, tmp_path) as service:
        with ExitStack() as stack:
            for _ in range(100):
                address = "127.0.0.1", admin_port(service)
                stack.enter_context(await asyncio.to_thread(socket.create_connection, address, 10))
            reply = await asyncio.to_thread(ask_admin, service, "/health/ready")
    assert reply.status == 200
    assert "limit of 64 connections of the admin listener reached" in caplog.text
