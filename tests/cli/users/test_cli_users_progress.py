"""``tornado-idv users import`` on a terminal."""

from __future__ import annotations

import os
import pty
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from support.processes.forking import fork
from support.processes.process import TIMEOUT
from tornado_idv.cli.users.commands import generated_users
from tornado_idv.cli.users.formats import write_users

ROWS = 5000


@pytest.mark.slow
def test_import_shows_its_progress_on_a_terminal(folder: Path, config: Callable[..., Path]) -> None:
    """The share that is done, the rows and their rate."""
    path = config("name: people, kind: sqlite, path: people.db")
    with (folder / "list.csv").open("w", encoding="utf-8") as file:
        write_users(file, "csv", generated_users(ROWS, seed=1))
    seen = on_terminal(
        *("users", "import", folder / "list.csv", "--to", "people", "--config", path)
    )
    shown, _, left = seen.rpartition("\x1b[?25h")
    assert re.search(rf"Importing .*#.*\d+% .*{ROWS:,} rows, [\d,]+/s", shown)
    assert left.strip() == f"Imported {ROWS} users into people: {ROWS} added, 0 updated, 0 removed."


def on_terminal(*arguments: object) -> str:
    """Run a command whose standard error is a terminal; return what it wrote there."""
    terminal, end = pty.openpty()
    with Path(os.devnull).open("w") as output, os.fdopen(terminal, "rb", buffering=0) as screen:
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
        process = fork(*map(str, arguments), stdout=output.fileno(), stderr=end, env=env)
        os.close(end)
        seen = b""
        with suppress(OSError):  # EIO: the command has ended
            while piece := screen.read(4096):
                seen += piece
        assert process.wait(TIMEOUT) == 0
    return seen.decode()
