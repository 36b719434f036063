"""A folder to use the command line in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import Result

from support.databases.user_lists import ANY_LIST
from support.processes.process import Invoke

FIXTURE = """\
users:
  - {nickname: "@alice", card_number: "4000123412341234", plan: Größer}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a fixture of one user."""
    (tmp_path / "users.yaml").write_text(FIXTURE, encoding="utf-8")
    return tmp_path


@pytest.fixture
def config(folder: Path) -> Callable[..., Path]:
    """Writes a configuration with these backends, and more lines."""

    def write(*backends: str, more: str = "") -> Path:
        path = folder / "config.yaml"
        entries = "".join(f"  - {{{each}}}\n" for each in backends)
        text = f"profile_sites: [https://profiles.example]\n{more}backends:\n{entries}"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def users(invoke: Invoke, config: Callable[..., Path]) -> Callable[..., Result]:
    """Runs one of the commands with the backends people, other and demo; imports any list."""
    backends = (
        "name: people, kind: sqlite, path: people.db",
        "name: other, kind: sqlite, path: other.db",
        "name: demo, kind: yaml, path: users.yaml",
    )

    def run(
        name: str,
        *arguments: object,
        options: Sequence[str] = ANY_LIST,
        more: str = "",
        stdin: bytes | None = None,
    ) -> Result:
        given = options if name == "import" else ()
        file = config(*backends, more=more)
        return invoke("users", name, *given, *arguments, "--config", file, stdin=stdin)

    return run


@pytest.fixture
def source(folder: Path) -> Callable[..., Path]:
    """Writes a file to import."""

    def write(text: str, name: str = "list.csv") -> Path:
        path = folder / name
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        return path

    return write
