"""``tornado-idv`` for shell scripts, forked by `support.processes.forking`: no new interpreter."""

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from support.processes.fork_server import MAX_REQUEST
from support.processes.forking import ForkedCommand, fork
from support.processes.process import eventually

# Isolated and without site-packages, since it starts a dozen times.
_PROGRAM = """\
#!{python} -ISE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
    sock.connect({address!r})
    request = [sys.argv[1:], dict(os.environ), os.getcwd()]
    socket.send_fds(sock, [json.dumps(request).encode()], [1, 2])
    sys.exit(int(sock.recv(16)) % 256)
"""


class ShellCommands:
    """The commands that scripts have started, by their arguments and ``IDV_HOST``."""

    def __init__(self) -> None:
        self.started: dict[tuple[str, ...], ForkedCommand] = {}

    def stop(self, *key: str) -> int:
        """Send SIGTERM to a command; return its exit code."""
        process = self.started[key]
        process.send_signal(signal.SIGTERM)
        eventually(lambda: process.returncode is not None)  # a thread waits for it
        return process.returncode or 0

    def serve(self, sock: socket.socket) -> None:
        """Fork a command for each connection."""
        with suppress(OSError):  # closed
            while True:
                client, _ = sock.accept()
                threading.Thread(target=self._run, args=(client,), daemon=True).start()

    def _run(self, client: socket.socket) -> None:
        with client:
            message, streams, _, _ = socket.recv_fds(client, MAX_REQUEST, 2)
            arguments, environment, folder = json.loads(message)
            process = fork(
                *arguments, stdout=streams[0], stderr=streams[1], env=environment, cwd=Path(folder)
            )
            for each in streams:
                os.close(each)
            self.started[(*arguments, environment.get("IDV_HOST", ""))] = process
            with suppress(OSError):  # the script did not wait for it
                client.send(b"%d" % process.wait())


@contextmanager
def shell_commands(folder: Path) -> Iterator[ShellCommands]:
    """Put ``tornado-idv`` into the folder, and end at last what is still running."""
    address = folder / "socket"
    program = folder / "tornado-idv"
    program.write_text(_PROGRAM.format(python=sys.executable, address=str(address)))
    program.chmod(0o755)
    commands = ShellCommands()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.bind(str(address))
        sock.listen()
        thread = threading.Thread(target=commands.serve, args=(sock,))
        thread.start()
        try:
            yield commands
        finally:
            sock.shutdown(socket.SHUT_RDWR)
            thread.join()
            for process in commands.started.values():
                process.kill()
