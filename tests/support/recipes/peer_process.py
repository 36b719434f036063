"""Servers of others as processes, which are ended by their own id.

`make test-tools` installs them; what needs one that is not there is skipped.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from support.processes.ports import free_port
from support.processes.process import TIMEOUT
from support.processes.proxies import find_tool, not_installed

ROOT = Path(__file__).parents[3]
MODULES = ROOT / "tests" / "recipes" / "node_modules"
POSTGRAPHILE = ROOT / "tests" / "recipes" / "postgraphile" / "node_modules"
PROGRAMS = ROOT / ".venv-recipes" / "bin"

Serve = Callable[[Path], AbstractContextManager[str]]
"""Runs a server in a folder, and gives its address."""


@dataclass(frozen=True)
class Peer:
    port: int
    headers: Mapping[str, str]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answers(self) -> bool:
        try:
            return self._status("GET", "/") > 0
        except OSError:
            return False

    def keep(self, method: str, path: str, document: Any) -> None:
        status = self._status(method, path, json.dumps(document))
        assert status in (200, 201), f"{method} {path} was answered {status}"

    def _status(self, method: str, path: str, body: str | None = None) -> int:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        try:
            connection.request(method, path, body, self.headers)
            return connection.getresponse().status
        finally:
            connection.close()


@contextmanager
def started(
    command: Sequence[str], folder: Path, headers: Mapping[str, str] | None = None
) -> Iterator[Peer]:
    """Runs a server; ``{port}`` in its command stands for a free port."""
    peer = Peer(free_port(), headers or {})
    log = folder / "server.log"
    with log.open("w", encoding="utf-8") as out:
        process = subprocess.Popen(
            [word.replace("{port}", str(peer.port)) for word in command],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
        deadline = time.monotonic() + TIMEOUT
        try:
            while not peer.answers():
                ended = process.poll() is not None
                assert not ended, f"it ended before it answered: {log.read_text()}"
                assert time.monotonic() < deadline, f"it never answered: {log.read_text()}"
                time.sleep(0.02)
            yield peer
        finally:
            process.kill()
            process.wait()


def node_program(path: str, modules: Path = MODULES) -> Sequence[str]:
    """The words that run a program of the folder ``node_modules``; skips where it is not."""
    if not (modules / path).exists():
        pytest.skip(not_installed(path.partition("/")[0]))
    return [find_tool("node"), str(modules / path)]


def python_program(name: str) -> Sequence[str]:
    """The words that run a program of the recipes' own environment; skips where it is not."""
    if not (PROGRAMS / name).exists():
        pytest.skip(not_installed(name))
    return [str(PROGRAMS / "python"), "-I", str(PROGRAMS / name)]
