"""``tornado-idv keys`` as a process: its output, and its audit log."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path

import pytest

from support.databases.key_stores import make_store, read
from support.processes.process import BROKEN, CLOSED, command, on_terminal
from tornado_idv.keys.token import digest

pytestmark = pytest.mark.slow

USER = pwd.getpwuid(os.getuid()).pw_name


@pytest.mark.parametrize(
    ("arguments", "output"),
    [("issue shop", CLOSED), ("issue shop --json", BROKEN), ("rotate known", "/dev/full")],
)
def test_nothing_is_changed_where_the_token_cannot_be_printed(
    path: Path, arguments: str, output: str
) -> None:
    make_store(path, "known")
    known = read(path)
    done = command("keys", *arguments.split(), "--store", path, output=output)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    (reason,) = done.stderr.splitlines()
    assert reason.startswith("standard output ")
    assert reason.endswith("; no key was changed")
    assert read(path) == known


def test_every_change_is_in_the_audit_log(path: Path) -> None:
    """Who, the command and the key; never a token or its digest."""
    tokens, lines = [], []
    steps = ["issue", "rotate", "disable", "enable", "revoke"]
    for step in steps:
        create = ["--create"] if step == "issue" else []
        done = command("keys", step, "shop", *create, "--store", path)
        assert done.returncode == 0
        tokens += done.stdout.split()
        lines += [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert len(tokens) == 2
    assert [each["command"] for each in lines] == [f"keys {step}" for step in steps]
    for line in lines:
        assert (line["user"], line["key"], line["level"]) == (USER, "shop", "info")
        assert line["logger"] == "tornado_idv.audit"
        for token in tokens:
            assert token not in str(line)
            assert token.split("_")[2] not in str(line)
            assert digest(token).hex() not in str(line)


def test_terminal_shows_no_audit_line(path: Path) -> None:
    make_store(path, "shop")
    seen = on_terminal("keys", "disable", "shop", "--store", path)
    assert seen.split("\r\n") == ["shop: disabled", ""]


def test_what_changed_nothing_is_not_in_the_audit_log(path: Path) -> None:
    make_store(path, "shop")
    for arguments in ["enable shop", "list", "show shop", "issue shop", "revoke other"]:
        done = command("keys", *arguments.split(), "--store", path)
        assert "audit" not in done.stderr


def test_audit_log_has_the_configured_format(path: Path, tmp_path: Path) -> None:
    """It is written at every ``logging.level``."""
    config = tmp_path / "config.yaml"
    config.write_text("auth: {store: keys.db}\nlogging: {format: console, level: error}\n")
    lines = tmp_path / "keys.jsonl"
    lines.write_text(json.dumps({"id": "shop", "sha256": "0" * 64}))
    done = command("keys", "import", lines, "--create", "--config", config)
    assert done.returncode == 0
    (line,) = (each for each in done.stderr.splitlines() if "key changed" in each)
    assert all(text in line for text in (f"user={USER}", 'command="keys import"', "key=shop"))
