"""The commands that ask the admin listener of a running service."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from support.processes.admin import ADMIN_KEY, OPEN_TO_ALL, WITH_ADMIN, admin_port, with_admin_port
from support.processes.ports import free_port
from support.processes.process import Invoke
from support.processes.service import KEY, Client, serving
from tornado_idv.admin.report import PartReport
from tornado_idv.service.service import Service

ALICES_CARD = "4000123412341234"


def test_degraded_service_is_ready_and_says_what_fails(
    service: Service, used: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = json.loads(invoke("health", "--config", used, "--json").stdout)
    assert record == {"status": "ready", "degraded": []}
    key_store = SimpleNamespace(report=lambda: PartReport("keys.db: gone", 0.0))
    monkeypatch.setitem(cast("dict[str, Any]", service.parts), "key store", key_store)
    service.sockets = PartReport("unix:/s was removed", 0.0)
    done = invoke("health", "--config", used)
    assert done.exit_code == 0
    assert done.stdout == "The service is ready, but degraded: key store, unix sockets.\n"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--all"], "Purged the whole cache."),
        (["--backend", "users"], 'Purged the answers of the backend, and every "not found".'),
        (["--nickname", "@alice"], 'Purged the answers about the user, and every "not found".'),
        (["--card", ALICES_CARD], 'Purged the answers about the user, and every "not found".'),
    ],
)
def test_cache_is_purged_and_its_figures_shown(
    service: Service, used: Path, invoke: Invoke, options: list[str], sentence: str
) -> None:
    for _ in range(2):
        Client(service.port).by_input("@alice")
    done = invoke("cache", "purge", *options, "--config", used)
    assert (done.exit_code, done.stdout) == (0, f"{sentence}\n")
    Client(service.port).by_input("@alice")
    done = invoke("cache", "stats", "--config", used)
    assert (done.exit_code, "33.3% of 3 lookups were hits" in done.stdout) == (0, True)
    record = json.loads(invoke("cache", "stats", "--config", used, "--json").stdout)
    assert record["lookups"] == {"hit": 1, "shared": 0, "stale": 0, "coalesced": 0, "miss": 2}


@pytest.mark.parametrize("options", [("--backend", "other"), ("--card", "x")], ids=" ".join)
def test_purge_of_anything_else_is_wrong_use(
    used: Path, invoke: Invoke, options: tuple[str, ...]
) -> None:
    done = invoke("cache", "purge", *options, "--config", used)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr


@pytest.mark.parametrize("options", [(), ("--all", "--backend", "users")])
def test_wrong_use_of_purge_is_reported_without_a_service(
    tmp_path: Path, invoke: Invoke, options: tuple[str, ...]
) -> None:
    done = invoke("cache", "purge", *options, "--config", with_admin_port(tmp_path, free_port()))
    assert (done.exit_code, done.stdout) == (2, "")


@pytest.mark.parametrize(
    ("who", "code", "text"),
    [
        ("@alice", 0, "cached: nothing\nasked users: found ("),
        (ALICES_CARD, 0, "result: found\n"),
        ("@bob", 1, "result: not found\n"),
        ("alice", 2, "a nickname must begin with @"),
    ],
)
def test_explain_shows_backends(used: Path, invoke: Invoke, who: str, code: int, text: str) -> None:
    done = invoke("explain", who, "--config", used)
    assert (done.exit_code, text in done.output) == (code, True)
    if code < 2:
        record = json.loads(invoke("explain", who, "--config", used, "--json").stdout)
        assert record["backends"][0]["backend"] == "users"


@pytest.mark.parametrize(
    "command", ["health", "cache stats", "cache purge --all", "explain @alice", "reload"]
)
def test_no_service_could_not_be_determined(tmp_path: Path, invoke: Invoke, command: str) -> None:
    path = with_admin_port(tmp_path, port := free_port())
    done = invoke(*command.split(), "--config", path)
    assert (done.exit_code, done.stdout) == (3, "")
    listener = f"the admin listener at http://127.0.0.1:{port}"
    assert f"no response from {listener}: Connection refused" in done.stderr
    done = invoke(*command.split(), "--config", path, "--json")
    assert (done.exit_code, json.loads(done.stdout)["ok"]) == (3, False)


UNKNOWN = '{"status": "ok", "result": "undetermined", "cache": "new", "backends": []}'


@pytest.mark.parametrize(
    ("command", "body", "code", "shown"),
    [
        *(("health", each, 3, "") for each in ("[]", "{}", "<p>", "SSH-2.0\r\n")),
        ("explain @a", UNKNOWN, 3, "cached: new\nresult: could not be determined\n"),
        ("health", '{"status": "draining"}', 1, "The service is draining: it is about to stop.\n"),
    ],
)
def test_response_that_a_ready_service_does_not_send_is_no_success(
    tmp_path: Path, invoke: Invoke, *, command: str, body: str, code: int, shown: str
) -> None:
    def respond() -> None:
        sock, _ = listener.accept()
        with sock:
            head = "" if body.startswith("SSH") else "HTTP/1.0 200 OK\r\n\r\n"
            sock.sendall(f"{head}{body}".encode())
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):  # A close before the whole request is read resets it.
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as pool:
        pool.submit(respond)
        port = listener.getsockname()[1]
        done = invoke(*command.split(), "--config", with_admin_port(tmp_path, port))
    assert (done.exit_code, done.stdout) == (code, shown)
    assert shown or f"http://127.0.0.1:{port}" in done.stderr


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("backends: []\n", 3, "add: admin: {port: 8081}, and restart the service"),
        (WITH_ADMIN, 3, "commands need a fixed port"),
        ("a: b: c\n", 1, "config.yaml:1:5: "),
        ("admin: {port: x}\n", 3, "admin is not valid; see tornado-idv check"),
        ("[admin]", 3, "admin is not valid; see tornado-idv check"),
    ],
    ids=["no listener", "any port", "no YAML", "wrong address", "a list"],
)
def test_configuration_without_a_fixed_address_is_reported(
    tmp_path: Path, invoke: Invoke, text: str, code: int, message: str
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    done = invoke("reload", "--config", path)
    assert (done.exit_code, done.stdout, message in done.stderr) == (code, "", True)


def test_key_is_read_from_a_file(tmp_path: Path, invoke: Invoke) -> None:
    (tmp_path / "admin.token").write_text(f"{ADMIN_KEY}\n")
    (tmp_path / "other.token").write_text(KEY)
    (tmp_path / "bad.token").write_text("one\ntwo")
    (tmp_path / "latin.token").write_text("ümlaut")
    with serving(OPEN_TO_ALL, tmp_path) as service:
        used = with_admin_port(tmp_path, admin_port(service), OPEN_TO_ALL)

        def health(*options: object) -> tuple[int, str]:
            done = invoke("health", "--config", used, *options)
            return done.exit_code, done.output

        assert health("--token-file", tmp_path / "admin.token") == (0, "The service is ready.\n")
        for options in ((), ("--token-file", tmp_path / "other.token")):
            code, text = health(*options)
            assert code == 3
            assert "name a file with a key of scope admin by --token-file" in text
            assert KEY not in text
        for name in ("bad.token", "latin.token", "missing.token"):
            code, text = health("--token-file", tmp_path / name)
            assert (code, name in text, "two" in text) == (3, True, False)


def test_reload_reports_what_the_service_does_with_its_file(
    service: Service, used: Path, tmp_path: Path, invoke: Invoke
) -> None:
    file = tmp_path / "config.yaml"
    with patch("http.client.HTTPConnection", wraps=HTTPConnection) as connection:
        done = invoke("reload", "--config", used)
    assert (done.exit_code, done.stdout) == (0, "The configuration is reloaded.\n")
    assert connection.call_args.kwargs["timeout"] > 120  # the service opens backends meanwhile
    file.write_text(f"{WITH_ADMIN}logging: {{level: debug, ids: full}}\n")
    done = invoke("reload", "--config", used)
    assert done.exit_code == 0
    assert "take effect after a restart: logging.level, logging.ids\n" in done.stdout
    record = json.loads(invoke("reload", "--config", used, "--json").stdout)
    assert record == {"status": "ok", "needs_restart": ["logging.level", "logging.ids"]}
    (tmp_path / "users.yaml").rename(tmp_path / "moved.yaml")
    file.write_text(WITH_ADMIN.replace("path: users.yaml", "path: users.yaml, timeout: 1s"))
    done = invoke("reload", "--config", used)
    assert (done.exit_code, done.stdout) == (3, "")
    assert "users.yaml: cannot be read: No such file or directory\n" in done.stderr
    for path in (used, file):  # the command reads nothing but the address from it
        path.write_text(f"{path.read_text()}bogus: 1\nlogging: 1\n")
    done = invoke("reload", "--config", used)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "The configuration is not valid; the old one stays in force\n" in done.stderr
    assert f"{file}:11:1: bogus: unknown setting" in done.stderr
    done = invoke("reload", "--config", used, "--json")
    assert (done.exit_code, json.loads(done.stdout)["code"]) == (1, "invalid_configuration")
