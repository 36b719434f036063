"""Exit codes of all commands where what they print cannot be written."""

import os
import select
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from unittest.mock import Mock

import click
import pytest

from support.databases import sqlite_databases
from support.databases.key_stores import make_store, read
from support.processes.commands import commands
from support.processes.forking import fork
from support.processes.ports import free_port
from support.processes.process import (
    BROKEN,
    CLOSED,
    TIMEOUT,
    Invoke,
    eventually,
    open_output,
    running,
)
from support.processes.service import KEY
from tornado_idv.cli import main
from tornado_idv.model import User

pytestmark = pytest.mark.slow

USERS = [User("Free", "4000", "alice"), User("Pro", "4001", "bob")]
CONFIG = f"""\
profile_sites: [https://profiles.example]
server: {{port: 0, request_timeout: 60s}}
admin: {{port: ADMIN}}
auth: {{store: keys.db, keys: [{{id: caller, token: {KEY}}}]}}
backends:
  - {{name: one, kind: sqlite, path: one.db, timeout: 60s}}
  - {{name: other, kind: sqlite, path: other.db, timeout: 60s}}
  - {{name: imported, kind: sqlite, path: imported.db, timeout: 60s}}
  - {{name: new, kind: sqlite, path: one.db, shadow: {{sample: 100%, state: shadow.db}}}}
"""
POSTGRES = """\
profile_sites: [https://profiles.example]
backends: [{name: users, kind: postgres, dsn: 'postgresql://127.0.0.1:1/x'}]
"""
IMPORTED = '{"id": "imported", "sha256": "%s"}\n' % ("7" * 64)
AT_ONCE = "--grace 0s --max-gone 100% --confirm-after 0s"
# The arguments, the exit code, and the exit code where standard output cannot be written.
TABLE = {
    "cache purge": ("--all", 0, 3),
    "cache stats": ("", 0, 3),
    "check": ("", 0, 3),
    "drill": ("-- ./missing", 3, 3),
    "explain": ("@carol", 1, 3),
    "health": ("--json", 0, 3),
    "init": ("NEW", 0, 3),
    "keys disable": ("disabled --json", 0, 0),
    "keys enable": ("missing --json", 1, 1),
    "keys export": ("", 0, 3),
    "keys import": ("imported.jsonl --update --json", 0, 0),
    "keys issue": ("NEW", 0, 1),
    "keys list": ("", 0, 3),
    "keys revoke": ("revoked", 0, 0),
    "keys rotate": ("rotated", 0, 1),
    "keys show": ("shown", 0, 3),
    "lookup": ("@carol", 1, 3),
    "migrate check": ("--json", 1, 3),
    "migrate report": ("", 0, 3),
    "migrate status": ("", 0, 3),
    "openapi": ("", 0, 3),
    "plugins": ("", 0, 3),
    "postgres init": ("-c postgres.yaml", 0, 3),
    "reconcile": (f"accounts --url URL --key-file key --state state {AT_ONCE}", 0, 3),
    "reload": ("", 0, 3),
    "schema": ("", 0, 3),
    "serve": ("-c missing.yaml", 3, 3),
    "status": ("", 0, 3),
    "users compare": ("one other --json", 1, 3),
    "users count": ("--from one", 0, 3),
    "users export": ("--from one", 0, 3),
    "users generate": ("--count 3", 0, 3),
    "users import": ("users.csv --to imported --json", 0, 0),
    # and of click
    "--help": ("", 0, 3),
    "--version": ("", 0, 3),
    "keys --help": ("", 0, 3),
    "no-such-command": ("", 2, 2),
    "users": ("no-such-command", 2, 2),
    "cache": ("", 2, 2),
}
SAMPLE = {
    *("check", "keys issue", "keys revoke", "keys rotate", "lookup", "reconcile", "serve"),
    *("users export", "--help", "no-such-command"),
}
"""Commands that print in different ways; one class writes to the streams of all commands."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What the commands need, and a running service."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "config.yaml").write_text(CONFIG.replace("ADMIN", str(free_port())))
    (folder / "postgres.yaml").write_text(POSTGRES)
    (folder / "accounts").write_text("@alice\n@carol\n")
    (folder / "key").write_text(KEY)
    (folder / "imported.jsonl").write_text(IMPORTED)
    (folder / "users.csv").write_text("nickname,card_number,plan\nalice,4000,Team\n")
    sqlite_databases.write(folder / "one.db", *USERS)
    for name in ("other.db", "imported.db"):
        sqlite_databases.write(folder / name, USERS[0])
    make_store(folder / "keys.db", "disabled", "revoked", "rotated", "shown")
    with running(folder / "config.yaml") as service:
        (folder / "url").write_text(f"http://127.0.0.1:{service.port}")
        eventually((folder / "shadow.db").exists)
        yield folder


def run_at_once(
    folder: Path, names: Collection[str], stream: str, output: str
) -> dict[str, tuple[int, str]]:
    """Run commands at once; return the exit code of each, and what its other stream got."""
    new, url = f"{stream}-{output.strip('/').replace('/', '-')}", (folder / "url").read_text()
    with ExitStack() as stack:
        started = {}
        bad = open_output(output)
        stack.callback(os.close, bad)
        for name in names:
            arguments, *_ = TABLE[name]
            given = arguments.replace("NEW", new).replace("URL", url).split()
            other = stack.enter_context(TemporaryFile("w+"))
            streams = {"stdout": other.fileno(), "stderr": other.fileno(), stream: bad}
            closed = [("stdout", "stderr").index(stream) + 1] if output == CLOSED else []
            process = fork(*name.split(), *given, **streams, closed=closed, cwd=folder)
            stack.callback(process.kill)
            started[name] = process, other
        results = {}
        for name, (process, other) in started.items():
            code = process.wait(TIMEOUT)
            other.seek(0)
            results[name] = code, other.read()
        return results


def test_every_command_is_in_the_table() -> None:
    assert {name for name, _ in commands(main)} <= TABLE.keys()


@pytest.mark.parametrize(
    ("names", "stream", "output"),
    [
        (TABLE.keys(), "stdout", "/dev/full"),
        (SAMPLE, "stdout", BROKEN),
        (SAMPLE, "stdout", CLOSED),
        (SAMPLE, "stderr", "/dev/full"),
    ],
    ids=["stdout-/dev/full", "stdout-broken", "stdout-closed", "stderr-/dev/full"],
)
def test_exit_code_is_the_documented_one(
    folder: Path, names: Collection[str], stream: str, output: str
) -> None:
    """That of the result, or 3 where standard output cannot have it."""
    results = run_at_once(folder, names, stream, output)
    unwritten = stream == "stdout"
    expected = {name: TABLE[name][1 + unwritten] for name in names}
    assert {name: code for name, (code, _) in results.items()} == expected, results
    for name, (_, text) in results.items():
        assert "Exception ignored" not in text
        assert "Traceback" not in text
        if expected[name] == 3 != TABLE[name][1]:
            reason = "standard output cannot be written: No space left on device\n"
            assert text == (reason if output == "/dev/full" else "")
        if name == "users import":
            assert text.startswith("done, but standard output cannot be written: No space left on")
            assert b"Team" in (folder / "imported.db").read_bytes()
    assert (folder / "state").exists() is not unwritten
    stored = read(folder / "keys.db")
    assert stored["disabled"].disabled or "keys disable" not in names
    assert stored["revoked"].revoked is not None
    assert (len(stored["rotated"].tokens) > 1) is not unwritten


_OF_A_PLUGIN = """
import sys
from tornado_idv.cli import main

@main.command()
def ask():
    print("no")
    print("a warning", file=sys.stderr)
    sys.exit(1)

main()
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(("stream", "code"), [("stdout", 3), ("stderr", 1)])
def test_command_of_a_plugin_need_not_flush(stream: str, code: int, unbuffered: str) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            [sys.executable, "-c", _OF_A_PLUGIN, "ask"],
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: full},
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            timeout=TIMEOUT,
            check=False,
        )
    assert done.returncode == code
    if stream == "stdout":
        reason = b"standard output cannot be written: No space left on device\n"
        assert done.stderr == b"a warning\n" + reason


def test_prompt_that_fails_is_not_the_answer_no(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [click.Abort(), FileNotFoundError(2, "No such file", "x"), PermissionError()]
    ask = click.Command("ask", callback=Mock(side_effect=errors))
    monkeypatch.setitem(main.commands, "ask", ask)
    results = [(done.exit_code, done.stderr.split(":")[0]) for done in map(invoke, ["ask"] * 3)]
    assert results == [(130, "\ninterrupted\n"), *[(3, "unexpected error")] * 2]


def test_pipe_that_another_process_made_non_blocking_gets_all() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    process = fork("users", "generate", "--count", "5000", stdout=writing, stderr=2)
    eventually(lambda: not select.select([], [writing], [], 0)[1])  # it is full
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert len(pipe.readlines()) == 5001
    assert process.wait(TIMEOUT) == 0
