"""Ports of 127.0.0.1 for servers that cannot choose one themselves."""

import random
import socket
import subprocess
import time
from contextlib import suppress

import pytest

# Below those that the kernel gives to clients and to servers on port 0 (Linux, macOS): one of
# these would take a port before the server that it was found for.
_PORTS = iter(random.sample(range(20_000, 32_000), 12_000))


def free_port() -> int:
    """Return a port that nothing listens on; each once in a process."""
    for port in _PORTS:
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


def require_ipv6() -> None:
    """Skip the test where the loopback interface has no IPv6 address."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")


def listens(port: int, host: str = "127.0.0.1") -> bool:
    try:
        socket.create_connection((host, port), timeout=10).close()
    except (ConnectionRefusedError, ConnectionResetError):  # Reset: it closed meanwhile.
        return False
    return True


def wait_until_listens(
    process: subprocess.Popen[bytes], port: int, host: str = "127.0.0.1"
) -> None:
    """Wait until a new server accepts connections; fail if it has ended."""
    deadline = time.monotonic() + 20
    while not listens(port, host):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
