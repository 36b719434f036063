"""Processes of benchmarks: modules are forked by `support.processes.forking`, files are copied."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from benchmarks import postgres_server
from benchmarks.wire import process
from support.databases.kept_files import make_or_copy
from support.processes.forking import ForkedCommand, fork

_start = asyncio.create_subprocess_exec


@contextmanager
def forked() -> Iterator[None]:
    """Fork the modules that benchmarks run; other programs are started as they are."""
    with pytest.MonkeyPatch.context() as patch:
        known = {"DEVNULL": subprocess.DEVNULL, "Popen": _start_or_fork}
        patch.setattr(process, "subprocess", SimpleNamespace(**known))
        patch.setattr(asyncio, "create_subprocess_exec", _start_or_fork_client)
        known = {**vars(subprocess), "run": _run_or_copy}
        patch.setattr(postgres_server, "subprocess", SimpleNamespace(**known))
        yield


def _start_or_fork(
    command: Sequence[str], stdout: IO[bytes], stderr: IO[bytes], cwd: Path, **options: Any
) -> subprocess.Popen[bytes] | ForkedCommand:
    if _is_module(command):
        return _fork(command, stdout.fileno(), stderr.fileno(), cwd)
    return subprocess.Popen(command, stdout=stdout, stderr=stderr, cwd=cwd, **options)


def _is_module(command: Sequence[str]) -> bool:
    """Return whether this is a module of Python, perhaps on given cores."""
    at = 3 if command[0] == "taskset" else 0
    return tuple(command[at : at + 2]) == (sys.executable, "-m")


def _fork(command: Sequence[str], stdout: int, stderr: int, cwd: Path) -> ForkedCommand:
    """Fork the module of a command line, and move it to its cores."""
    at = command.index(sys.executable)
    module, *arguments = command[at + 2 :]
    forked = fork(*arguments, module=module, stdout=stdout, stderr=stderr, cwd=cwd)
    if at:
        taskset, option, cores = command[:at]
        move = [taskset, f"{option}p", cores, str(forked.pid)]
        try:
            subprocess.run(move, stdout=subprocess.DEVNULL, check=True)
        except subprocess.CalledProcessError:
            forked.kill()
            raise
    return forked


class _ForkedClient:
    """A forked process, with what benchmarks use of `asyncio.subprocess.Process`."""

    def __init__(
        self, command: ForkedCommand, stdout: asyncio.StreamReader, pipe: asyncio.ReadTransport
    ) -> None:
        self._command = command
        self._pipe = pipe
        self.stdout = stdout
        self.terminate = command.terminate
        self.kill = command.kill

    @property
    def returncode(self) -> int | None:
        code = self._command.poll()
        if code is not None:
            self._pipe.close()
        return code

    async def communicate(self) -> tuple[bytes, None]:
        output = await self.stdout.read()
        await self.wait()
        return output, None

    async def wait(self) -> None:
        await asyncio.to_thread(self._command.wait)
        self._pipe.close()


async def _start_or_fork_client(*command: str, **options: Any) -> Any:
    if not _is_module(command):
        return await _start(*command, **options)
    reading, writing = os.pipe()
    stdout = asyncio.StreamReader()
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stdout), os.fdopen(reading, "rb")
    )
    forked = _fork(command, writing, 2, options["cwd"])
    os.close(writing)
    return _ForkedClient(forked, stdout, pipe)


def _run_or_copy(command: Sequence[str | Path], *, check: bool, **options: Any) -> None:
    """Run ``initdb``, which takes over a second of CPU, unless its files were kept."""
    data = Path(command[command.index("-D") + 1])
    line = [str(each) for each in command if each != data]
    made_of = (line, options["user"])
    make_or_copy(data, made_of, lambda: subprocess.run(command, check=check, **options))
