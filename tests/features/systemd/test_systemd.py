"""Notifications of the service manager, received by a real socket."""

import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tornado_idv.features.systemd.notify import Notifier


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[socket.socket]:
    """The manager's socket, in a folder or in the abstract namespace."""
    address = str(tmp_path / "notify") if request.param == "path" else f"\0{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(address)
        sock.settimeout(10)
        yield sock


def environ(manager: socket.socket, **more: str) -> dict[str, str]:
    name = manager.getsockname()
    address = name if isinstance(name, str) else f"@{name[1:].decode()}"
    return {"NOTIFY_SOCKET": address, **more}


def test_each_state_is_a_datagram(manager: socket.socket) -> None:
    notifier = Notifier(environ(manager))
    before = time.monotonic_ns() // 1000
    notifier("ready")
    notifier("reloading")
    notifier("alive")
    notifier("stopping")
    received = [manager.recv(1000).decode() for _ in range(4)]
    assert received[0] == f"READY=1\nMAINPID={os.getpid()}"
    reloading, _, at = received[1].partition("\nMONOTONIC_USEC=")
    assert (reloading, before <= int(at) <= time.monotonic_ns() // 1000) == ("RELOADING=1", True)
    assert received[2:] == ["WATCHDOG=1", "STOPPING=1"]


@pytest.mark.parametrize(
    ("more", "interval"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "3000000"}, 1.5),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, 1.5),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
    ids=["none", "watched", "this process", "another process", "zero", "not a number"],
)
def test_watchdog_is_served_at_half_its_time(more: dict[str, str], interval: float | None) -> None:
    assert Notifier({"NOTIFY_SOCKET": "/x", **more}).interval == interval
    (without_manager := Notifier(more))("ready")  # nothing is sent
    assert without_manager.interval is None


def test_manager_that_is_gone_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for address in (str(tmp_path / "missing"), "/" * 200):
        Notifier({"NOTIFY_SOCKET": address})("ready")
    for reason in ("No such file", "AF_UNIX path too long"):
        assert f"the service manager cannot be notified: {reason}" in caplog.text


def test_busy_manager_gets_the_notification(manager: socket.socket) -> None:
    """A lost ``READY=1`` would end in a stop of the unit after its start timeout."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other, suppress(BlockingIOError):
        other.connect(manager.getsockname())
        other.settimeout(0)
        while True:
            other.send(b"X=1")
    timer = threading.Timer(0.02, manager.recv, [1000])
    timer.start()
    Notifier(environ(manager))("ready")
    timer.join()
    manager.settimeout(0)
    received = [*iter(lambda: manager.recv(1000).partition(b"\n")[0], b"READY=1")]
    assert set(received) == {b"X=1"}
