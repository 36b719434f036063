"""``tornado-idv serve --demo``: a test double without a configuration file."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.processes.admin import ask_admin
from support.processes.ports import listens
from support.processes.process import COMMAND, TIMEOUT, Invoke, command, eventually
from support.processes.service import Client
from tornado_idv.double import IdentityService

pytestmark = pytest.mark.slow
USERS = 'users:\n  - {nickname: "@alice", card_number: "4000", plan: Free}\n'


def test_fixture_is_served_on_the_announced_port_with_the_announced_key(tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "it's ${here}.yaml").write_text(USERS, encoding="utf-8")
    reading, writing = os.pipe()
    arguments = ["serve", "--demo", "it's ${here}.yaml", "--port", "0", "--ready-fd", str(writing)]
    arguments += ["--ready-file", "ready.json"]
    with subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=folder,
        pass_fds=[writing],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(folder)},
    ) as process:
        os.close(writing)
        with os.fdopen(reading) as pipe:
            line = pipe.read()
        record = json.loads(line)
        assert record["pid"] == process.pid
        fields = {"Authorization": f"Bearer {record['key']}"}
        client = Client(int(record["url"].rpartition(":")[2]))
        assert client.post("/api/v1/identify/url", b'{"input": "@alice"}', fields).status == 200
        admin = SimpleNamespace(admin_url=record["admin_url"])
        assert ask_admin(admin, "/double").json == {"users": [], "faults": {}}
        ready = folder / "ready.json"
        eventually(ready.exists)
        assert ready.read_text(encoding="utf-8") == line
        assert stat.S_IMODE(ready.stat().st_mode) == 0o600
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) == 0
    assert client.port != 8080
    assert {each.name for each in folder.iterdir()} == {"it's ${here}.yaml", "ready.json"}


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        (["--demo", "none.yaml"], 3, "none.yaml: cannot be read: No such file or directory"),
        (["--demo", "bad.yaml"], 1, "bad.yaml:1:1: users: missing or empty"),
        (["--demo", "users.yaml", "-c", "x.yaml"], 2, "--demo and --config are mutually exclusive"),
        (["--stop-on-eof"], 2, "--stop-on-eof requires --demo"),
        (["--demo", "users.yaml", "--ready-fd", "77"], 3, "--ready-fd cannot be written"),
        (["--demo", "users.yaml", "--ready-fd", "6"], 3, "written: the parent did not open it"),
        (["--demo", "users.yaml", "--ready-file", "no/file"], 3, "cannot be written: No such file"),
        (["--demo", "users.yaml", "--ready-file", "n" * 300], 3, "cannot be written: File name"),
    ],
)
def test_wrong_use_is_an_error(tmp_path: Path, given: list[str], code: int, message: str) -> None:
    (tmp_path / "users.yaml").write_text(USERS, encoding="utf-8")
    (tmp_path / "bad.yaml").write_text("{}", encoding="utf-8")
    done = command("serve", "--port", "0", *given, cwd=tmp_path)
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("mode", ["r", "w"], ids=["ended", "not readable, as that of nohup"])
def test_double_without_input_stops_and_leaves_nothing(tmp_path: Path, mode: str) -> None:
    (tmp_path / "users.yaml").write_text(USERS, encoding="utf-8")
    (temporary := tmp_path / "tmp").mkdir()
    arguments = ("serve", "--demo", "users.yaml", "--port", "0", "--stop-on-eof")
    environment = {**os.environ, "TMPDIR": str(temporary), "TORNADO_IDV_CONFIG": "not used"}
    with Path(os.devnull).open(mode) as stdin:
        done = subprocess.run(
            [*COMMAND, *arguments],
            cwd=tmp_path,
            env=environment,
            stdin=stdin,
            capture_output=True,
            timeout=TIMEOUT,
            check=False,
        )
    assert (done.returncode, list(temporary.iterdir())) == (0, []), done.stderr


def test_double_does_not_outlive_the_program_that_started_it(tmp_path: Path) -> None:
    program = """
import time
from tornado_idv.double import IdentityService
with IdentityService.start() as service:
    print(service.url, flush=True)
    time.sleep(100)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().decode().rpartition(":")[2])
        socket.create_connection(("127.0.0.1", port)).close()
        process.kill()
    eventually(lambda: not listens(port))


@pytest.mark.parametrize(("hangs", "code"), [(False, 0), (True, -signal.SIGKILL)])
def test_double_ends_with_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, hangs: bool, code: int
) -> None:
    """It imports none of the modules in the folder. A fork of the test holds the pipe to it."""
    started: list[Any] = []
    original = subprocess.Popen

    def popen(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(original(*arguments, **options))
        started.append(os.dup(started[0].stdin.fileno()))
        return started[0]

    for name in ("secrets", "token", "select"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('of the application')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", popen)
    with IdentityService.start() as service:
        assert service.requests == []
        if hangs:
            monkeypatch.setattr("tornado_idv.double._TIMEOUT", 0.0)
            started[0].send_signal(signal.SIGSTOP)
    os.close(started[1])
    assert started[0].returncode == code


@pytest.mark.parametrize(
    ("text", "stays"),
    [
        *((text, False) for text in ("{}", "[]", "[", '{"pid": 99999999}', f'{{"pid": {2**80}}}')),
        ('{"pid": OWN}', False),
        (f'{{"pid": {os.getppid()}}}', True),
        ("device", True),
    ],
)
def test_a_start_that_fails_removes_the_ready_file_of_a_service_that_has_ended(
    invoke: Invoke, tmp_path: Path, text: str, *, stays: bool
) -> None:
    """A restarted container may have the same process id. A device is no file."""
    (ready := tmp_path / "ready.json").write_text(text.replace("OWN", str(os.getpid())))
    if text == "device":
        ready.unlink()
        ready.symlink_to(os.devnull)
    done = invoke("serve", "--demo", tmp_path / "none.yaml", "--ready-file", ready)
    assert (done.exit_code, ready.exists()) == (3, stays)
