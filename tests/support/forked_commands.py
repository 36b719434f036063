"""Commands as processes that are forked from one with everything imported, and so start fast."""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from tornado_idv.cli import main

TIMEOUT = 30.0
CLOSED = "closed"
"""A standard output that is closed."""
BROKEN = "broken"
"""A standard output whose reader is gone."""

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tornado_idv.cli", "pytest"])


@dataclass
class ForkedCommand:
    """A running command."""

    process: ForkServerProcess
    output: str
    log: Path

    def kill(self) -> None:
        self.process.kill()

    def wait(self) -> int:
        """Return the exit code, or minus the signal that ended the command."""
        self.process.join(TIMEOUT)
        assert self.process.exitcode is not None, "the command did not end"
        return self.process.exitcode

    @property
    def stdout(self) -> str:
        return Path(self.output).read_text()

    @property
    def stderr(self) -> str:
        return self.log.read_text()


def start(folder: Path, *arguments: object, output: str | None = None) -> ForkedCommand:
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
    texts = [str(each) for each in arguments]
    process = _CONTEXT.Process(target=_run, args=(texts, output, str(log)))
    process.start()
    return ForkedCommand(process, output, log)


def _run(arguments: list[str], output: str, log: str) -> None:
    os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), 2)
    if output == CLOSED:
        os.close(1)
    elif output == BROKEN:
        reading, writing = os.pipe()
        os.dup2(writing, 1)
        os.close(reading)
    else:
        os.dup2(os.open(output, os.O_WRONLY | os.O_APPEND), 1)
    main(arguments)
