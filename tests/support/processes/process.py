"""The command as a process, which is forked from one with everything imported."""

import os
import pty
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from click.testing import Result

from support.processes.forking import ForkedCommand, fork

COMMAND = (sys.executable, "-m", "tornado_idv")
"""Starts an interpreter, for a test of what that does; a second of CPU time."""
TIMEOUT = 90.0
CLOSED = "closed"
"""A standard output that is closed."""
BROKEN = "broken"
"""A standard output whose reader is gone."""

Invoke = Callable[..., Result]
"""Runs one command without a process, as the fixture ``invoke`` does."""


@dataclass
class ServiceProcess:
    """A served process: what it announced up to now, and where its log goes."""

    process: ForkedCommand
    stdout: IO[str]
    log: Path
    announced: list[str]
    port: int = 0

    @property
    def admin_url(self) -> str | None:
        """The URL of the admin listener, if it was announced."""
        lines = [each for each in self.announced if each.startswith("Admin listener on ")]
        return lines[0].split()[-1] if lines else None

    def read_up_to(self, beginning: str) -> str:
        """Reads announced lines up to one that begins so, blanks aside."""
        for line in self.stdout:
            self.announced.append(line)
            if line.strip().startswith(beginning):
                return line.strip()
        raise AssertionError(f"ended before it said {beginning!r}: {self.log.read_text()}")

    def read_log(self) -> str:
        return self.log.read_text()

    def send_signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def stop(self) -> None:
        """Stop the service as its service manager does, without an error."""
        self.send_signal()
        code = self.wait()
        assert code == 0, code

    def wait(self) -> int:
        """Waits for the end, and gives the exit code."""
        self.announced += self.stdout.readlines()
        return self.process.wait(TIMEOUT)


@contextmanager
def running(
    config: Path, *options: str, path: Path | None = None, timeout: float = 120.0
) -> Iterator[ServiceProcess]:
    """Serves a configuration with these options, for at most ``timeout`` seconds.

    That is for a test that hangs. ``path`` is a folder with plugins to be found beside the others.
    """
    log = config.with_suffix(".log")
    visible = [str(path), os.environ.get("PYTHONPATH", "")] if path else []
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, visible))} if path else None
    reading, writing = os.pipe()
    with os.fdopen(reading, encoding="utf-8") as stdout, log.open("w") as stderr:
        process = fork(
            *("serve", "--config", str(config), *options),
            stdout=writing,
            stderr=stderr.fileno(),
            env=env,
        )
        os.close(writing)
        net = threading.Timer(timeout, process.kill)
        net.start()
        try:
            service = ServiceProcess(process, stdout, log, [])
            address = service.read_up_to("Listening on")
            if "://" in address:  # otherwise the first is a Unix socket: there is no port
                service.port = int(address.split("/")[2].rpartition(":")[2])
            service.read_up_to("Keys:")
            yield service
        finally:
            net.cancel()
            workers = children(process.pid)
            process.kill()
            process.wait(TIMEOUT)
            for pid in workers:  # they would drain, and be seen in the next test
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return []
    return [int(each) for each in text.split()]


def command(
    *arguments: object,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    module: str = "tornado_idv",
    output: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run one command, or another module, to its end.

    ``output`` is a file to take standard output, `CLOSED` or `BROKEN`.
    """
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        descriptor = open_output(output) if output else os.dup(stdout.fileno())
        try:
            process = fork(
                *map(str, arguments),
                stdout=descriptor,
                stderr=stderr.fileno(),
                closed=[1] if output == CLOSED else [],
                env={**os.environ, **(env or {})},
                cwd=cwd,
                module=module,
            )
        finally:
            os.close(descriptor)
        try:
            code = process.wait(TIMEOUT)
        finally:
            process.kill()
        texts = [each.seek(0) or each.read() for each in (stdout, stderr)]
        return subprocess.CompletedProcess(arguments, code, *texts)


def open_output(output: str) -> int:
    """Open a file, or what takes the place of `CLOSED` or `BROKEN`."""
    if output == BROKEN:
        reading, writing = os.pipe()
        os.close(reading)
        return writing
    return os.open(os.devnull if output == CLOSED else output, os.O_WRONLY | os.O_APPEND)


def on_terminal(*arguments: object) -> str:
    """Run a command whose standard error is a terminal; return what it wrote there."""
    terminal, end = pty.openpty()
    with Path(os.devnull).open("w") as output, os.fdopen(terminal, "rb", buffering=0) as screen:
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
        process = fork(*map(str, arguments), stdout=output.fileno(), stderr=end, env=env)
        os.close(end)
        seen = b""
        with suppress(OSError):  # EIO: the command has ended
            while piece := screen.read(4096):
                seen += piece
        assert process.wait(TIMEOUT) == 0
    return seen.decode()


def eventually(condition: Callable[[], object], timeout: float = TIMEOUT) -> None:
    """Asks again and again until the condition holds."""
    deadline, pause = time.monotonic() + timeout, 0.002
    while not condition():
        assert time.monotonic() < deadline, "the condition never came to hold"
        time.sleep(pause)  # what is waited for needs the processor more
        pause = min(1.5 * pause, 0.03)
