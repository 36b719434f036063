"""A real Redis server on a free port, which the tests start, stop, freeze and restart."""

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from support.processes.ports import free_port, wait_until_listens
from support.processes.proxies import find_tool
from tornado_idv import User

_EMPTY = ("--save", "", "--appendonly", "no")
"""No persistence: after a restart the server is empty."""
PASSWORD = "s3cret-canary"
ALICE = User("Free", "4000123412341234", "alice")
BOB = User("Pro", "0012345670", "bob", "https://elsewhere.example/bob")


@dataclass
class RedisServer:
    """One server, with options in front of those that every server gets."""

    folder: Path
    options: tuple[str, ...] = _EMPTY
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        arguments = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        self.process = subprocess.Popen(
            [find_tool("redis-server"), *self.options, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until_listens(self.process, self.port)

    def stop(self) -> None:
        """End at once; what is not running is left as it is."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process = None

    def pause(self) -> None:
        """Freeze it: connections stay open, and nothing responds."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def run(self, *command: str | bytes) -> bytes:
        """Run one command; its reply, as the protocol has it (RESP 2)."""
        parts = [each.encode() if isinstance(each, str) else each for each in command]
        request = b"*%d\r\n" % len(parts)
        request += b"".join(b"$%d\r\n%b\r\n" % (len(each), each) for each in parts)
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as sock:
            sock.sendall(request)
            sock.shutdown(socket.SHUT_WR)  # a Sentinel has no QUIT
            return sock.makefile("rb").read()

    def wait_for(self, reply: bytes, *command: str) -> None:
        deadline = time.monotonic() + 60
        while True:
            with suppress(OSError):  # a Sentinel has closed those of all clients
                if reply in self.run(*command):
                    return
            assert time.monotonic() < deadline
            time.sleep(0.01)

    @property
    def run_id(self) -> str:
        """The id of this run, which every start changes."""
        return self.run("INFO", "server").partition(b"run_id:")[2][:40].decode()

    @property
    def accepted(self) -> int:
        stats = self.run("INFO", "stats")
        return int(stats.partition(b"total_connections_received:")[2].split(b"\r")[0])

    def write(self, *users: User, prefix: str = "") -> None:
        self.run("FLUSHALL")
        self.add(*users, prefix=prefix)
        self.run("SET", f"{prefix}ready", "1")

    def add(self, *users: User, prefix: str = "") -> None:
        for user in users:
            for command in commands_of(user, prefix):
                self.run(*command)


def commands_of(user: User, prefix: str = "") -> tuple[list[str], list[str]]:
    fields = ["nickname", user.nickname, "card_number", user.card_number, "plan", user.plan]
    fields += [] if user.profile_url is None else ["profile_url", user.profile_url]
    return (
        ["HSET", f"{prefix}user:{user.nickname}", *fields],
        ["SET", f"{prefix}card:{user.card_number}", user.nickname],
    )


@contextmanager
def running_sentinel(primary: RedisServer, service: str) -> Iterator[RedisServer]:
    """A Sentinel of its own, which knows a server as the primary of a service."""
    with tempfile.TemporaryDirectory(prefix="idv-sentinel-") as folder:
        config = Path(folder) / "sentinel.conf"
        config.write_text(f"sentinel monitor {service} 127.0.0.1 {primary.port} 1\n")
        sentinel = RedisServer(Path(folder), (str(config), "--sentinel"))
        try:
            sentinel.start()
            yield sentinel
        finally:
            sentinel.stop()


@contextmanager
def running_server(*options: str) -> Iterator[RedisServer]:
    """A new server without persistence; skips the test where none is installed."""
    with tempfile.TemporaryDirectory(prefix="idv-redis-") as folder:
        server = RedisServer(Path(folder), (*options, *_EMPTY))
        try:
            server.start()
            yield server
        finally:
            server.stop()
