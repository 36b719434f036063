"""A folder to use the command line in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

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
