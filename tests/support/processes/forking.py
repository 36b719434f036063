"""Commands as processes that are forked from `support.processes.fork_server`, and so start fast."""

import atexit
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from support.processes import fork_server

_connecting = threading.Lock()  # threads that connect at once would each have a connection


class ForkedCommand:
    """A running command, with what tests use of `subprocess.Popen`."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        text, (self._descriptor,), _, _ = socket.recv_fds(channel, 16, 1)
        self.pid = int(text)
        self.returncode: int | None = None

    def __del__(self) -> None:
        self._channel.close()
        os.close(self._descriptor)

    def poll(self) -> int | None:
        """Return the exit code, if it has ended."""
        with suppress(TimeoutError, BlockingIOError):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, or minus the signal that ended it; raise `TimeoutError`."""
        if self.returncode is None:
            self._channel.settimeout(timeout)
            self.returncode = int(self._channel.recv(16))
            self._channel.close()  # the collector of a cycle could warn before `__del__`
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it has ended
            signal.pidfd_send_signal(self._descriptor, number)

    def stop(self, timeout: float) -> None:
        self.terminate()
        code = self.wait(timeout)
        assert code == 0, code

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def fork(
    *arguments: str,
    stdout: int,
    stderr: int,
    closed: Sequence[int] = (),
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    module: str = "tornado_idv",
    sockets: Sequence[int] = (),
) -> ForkedCommand:
    """Start ``python -m`` with the module and these arguments, without a new interpreter.

    Standard input is empty; ``closed`` are the standard streams that the command does not have.
    ``sockets`` are its descriptors from 3 on.
    A test of an interpreter's start uses `support.processes.process.COMMAND` instead.
    """
    request = {
        "module": module,
        "arguments": arguments,
        "closed": closed,
        "environment": dict(os.environ if env is None else env),
        "folder": str(cwd or Path.cwd()),
        "descriptors": resource.getrlimit(resource.RLIMIT_NOFILE),
    }
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        message = json.dumps(request).encode()
        with _connecting:
            server = _server()
        socket.send_fds(server, [message], [theirs.fileno(), stdout, stderr, *sockets])
    return ForkedCommand(ours)


@cache
def _server() -> socket.socket:
    """Connect to the server of this run, and start it unless another worker has.

    It ends with the last worker.
    """
    address = f"\0idv-tests-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        try:
            listener.bind(address)
        except OSError:
            pass
        else:
            listener.listen()
            _start(listener)
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    while True:
        with suppress(ConnectionRefusedError):  # another worker is about to listen
            client.connect(address)
            break
    atexit.register(client.close)
    return client


def _start(listener: socket.socket) -> None:
    process = subprocess.Popen(
        [sys.executable, fork_server.__file__, str(listener.fileno())],
        pass_fds=[listener.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    atexit.register(process.wait)
