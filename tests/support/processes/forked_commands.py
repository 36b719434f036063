"""Commands that run at once, with their output in files."""

from __future__ import annotations

import os
import pty
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from support.processes.forking import ForkedCommand, fork

TIMEOUT = 90.0
CLOSED = "closed"
"""A standard output that is closed."""
BROKEN = "broken"
"""A standard output whose reader is gone."""


@dataclass
class LoggedCommand:
    """A running command."""

    process: ForkedCommand
    output: str
    log: Path

    def kill(self) -> None:
        self.process.kill()

    def wait(self) -> int:
        """Return the exit code, or minus the signal that ended the command."""
        return self.process.wait(TIMEOUT)

    @property
    def stdout(self) -> str:
        return Path(self.output).read_text()

    @property
    def stderr(self) -> str:
        return self.log.read_text()


def start(folder: Path, *arguments: object, output: str | None = None) -> LoggedCommand:
    """Start a command; its log goes into a new file in the folder, and so does its output.

    ``output`` is a file of another place, `CLOSED` or `BROKEN`.
    """
    folder.mkdir(exist_ok=True)
    number = len(list(folder.iterdir()))
    log = folder / f"{number}.err"
    log.touch()
    if output is None:
        output = str(folder / f"{number}.out")
        Path(output).touch()
    stdout, stderr = open_output(output), os.open(log, os.O_WRONLY | os.O_APPEND)
    closed = [1] if output == CLOSED else []
    try:
        texts = [str(each) for each in arguments]
        process = fork(*texts, stdout=stdout, stderr=stderr, closed=closed)
    finally:
        os.close(stdout)
        os.close(stderr)
    return LoggedCommand(process, output, log)


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


def open_output(output: str) -> int:
    """Open a file, or what takes the place of `CLOSED` or `BROKEN`."""
    if output == BROKEN:
        reading, writing = os.pipe()
        os.close(reading)
        return writing
    return os.open(os.devnull if output == CLOSED else output, os.O_WRONLY | os.O_APPEND)
