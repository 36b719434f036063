"""A service whose listening sockets this process holds, as systemd does (`sd_listen_fds(3)`)."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from support.processes.forking import ForkedCommand, fork
from support.processes.process import TIMEOUT, children, eventually


@contextmanager
def held_sockets(folder: Path) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield a TCP socket and a Unix socket, which listen with the backlog of systemd."""
    with (
        socket.create_server(("127.0.0.1", 0), backlog=4096) as tcp,
        socket.socket(socket.AF_UNIX) as unix,
    ):
        unix.bind(str(folder / "held.sock"))
        unix.listen(4096)
        yield tcp, unix


@contextmanager
def activated(
    sockets: Sequence[socket.socket], *arguments: str, log: Path, pid: str = "$$", count: str = ""
) -> Iterator[ForkedCommand]:
    """Run a command with these sockets, and its output in the log; end it at the end."""
    passed = {"PID": pid, "FDS": count or str(len(sockets)), "FDNAMES": "x"}
    with log.open("a") as out:
        process = fork(
            *arguments,
            stdout=out.fileno(),
            stderr=out.fileno(),
            env={**os.environ, **{f"LISTEN_{name}": value for name, value in passed.items()}},
            sockets=[each.fileno() for each in sockets],
        )
    workers: list[int] = []
    try:
        yield process
        workers = children(process.pid)
    finally:
        process.kill()
        process.wait(TIMEOUT)
        for each in workers:
            with suppress(ProcessLookupError):
                os.kill(each, 9)


@contextmanager
def serving_activated(
    sockets: Sequence[socket.socket], config: Path, **options: str
) -> Iterator[ForkedCommand]:
    """Serve a configuration on these sockets; wait until it does."""
    log = config.with_suffix(".log")

    def starts() -> int:
        """The number of services that have announced themselves, in the log and on the output."""
        text = log.read_text() if log.exists() else ""
        return min(map(text.count, ('"event":"started"', "\nKeys: ")))

    before = starts()
    with activated(sockets, "serve", "--config", str(config), log=log, **options) as process:
        eventually(lambda: process.poll() is not None or starts() > before)
        assert process.poll() is None, log.read_text()
        yield process


def drain_worker(supervisor: int, config: Path) -> None:
    """Have the first worker drain; wait until it has ended, which is when another serves."""
    log, (first, *_) = config.with_suffix(".log"), children(supervisor)
    os.kill(first, signal.SIGTERM)
    eventually(lambda: f"worker 1 (pid {first}) stopped" in log.read_text())
