"""The command line as a function, and a folder to use it in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from support.loggers import put_back
from support.process import Invoke
from tornado_idv.cli import main
from tornado_idv.registry import plugin_manager

FIXTURE = """\
users:
  - {nickname: "@alice", card_number: "4000123412341234", plan: Größer}
"""


@pytest.fixture
def invoke() -> Iterator[Invoke]:
    """Runs one command; whatever is no exit escapes, so that no test takes a crash for a 1.

    What a command does to the loggers of this process is undone.
    """

    def run(*arguments: object) -> Result:
        return CliRunner().invoke(main, [str(each) for each in arguments], catch_exceptions=False)

    plugin_manager()  # plugins set levels once, when they are imported: that is to stay
    with put_back():
        yield run


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
