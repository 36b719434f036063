"""A service whose listening sockets this process holds, as systemd does (`sd_listen_fds(3)`)."""

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
def serving_activated(sockets: Sequence[socket.socket], config: Path) -> Iterator[ForkedCommand]:
    """Serve a configuration on these sockets; wait until it does, and end it at the end."""
    log = config.with_suffix(".log")

    def starts() -> int:
        """The number of services that have announced themselves, in the log and on the output."""
        text = log.read_text() if log.exists() else ""
        return min(map(text.count, ('"event":"started"', "\nKeys: ")))

    before, workers = starts(), []
    passed = {"LISTEN_PID": "$$", "LISTEN_FDS": str(len(sockets)), "LISTEN_FDNAMES": "x"}
    with log.open("a") as out:
        process = fork(
            *("serve", "--config", str(config)),
            stdout=out.fileno(),
            stderr=out.fileno(),
            env={**os.environ, **passed},
            sockets=[each.fileno() for each in sockets],
        )
    try:
        eventually(lambda: process.poll() is not None or starts() > before)
        assert process.poll() is None, log.read_text()
        yield process
        workers = children(process.pid)
    finally:
        process.kill()
        process.wait(TIMEOUT)
        for each in workers:
            with suppress(ProcessLookupError):
                os.kill(each, 9)


def drain_worker(supervisor: int, config: Path) -> None:
    """Have the first worker drain; wait until it has ended, which is when another serves."""
    log, (first, *_) = config.with_suffix(".log"), children(supervisor)
    os.kill(first, signal.SIGTERM)
    eventually(lambda: f"worker 1 (pid {first}) stopped" in log.read_text())
