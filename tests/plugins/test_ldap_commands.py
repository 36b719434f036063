"""The commands ``check`` and ``lookup`` with a directory, and the stop of the service."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.databases.ldap_server import OPTIONS, PEOPLE, LdapServer, person, require
from support.processes.ports import free_port
from support.processes.process import Invoke, running
from support.processes.service import CONFIG

require()

BACKEND = {"name": "staff", "kind": "ldap", **OPTIONS, "connect_timeout": "300ms"}
Write = Callable[..., Path]
PERSONS = (person("carol", "3", "title: Pro", "uid: caroline"),)


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with LdapServer(tmp_path_factory.mktemp("ldap") / "server", PERSONS) as server:
        yield server.uri


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(config: str = CONFIG, **options: Any) -> Path:
        path = tmp_path / "config.yaml"
        path.write_text(f"{config}  - {json.dumps({**BACKEND, **options})}\n", encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize(
    ("who", "nickname"), [("@carol", "@carol"), ("3", "@carol"), ("@caroline", None)]
)
def test_recipe_for_entries_with_several_uids(
    invoke: Invoke, uri: str, write: Write, who: str, nickname: str | None
) -> None:
    path = write(
        uris=[uri],
        by_nickname={"filter": f"(&(uid={{nickname}})(entryDN=uid={{nickname}},{PEOPLE}))"},
        response={**OPTIONS["response"], "nickname": "trim_prefix(split(entryDN, ',')[0], 'uid=')"},
    )
    done = invoke("lookup", who, "-c", path, "--json")
    assert json.loads(done.output).get("nickname") == nickname
    assert done.exit_code == (1 if nickname is None else 0)


def test_check_fails_for_a_file_that_holds_no_certificate(
    invoke: Invoke, tmp_path: Path, write: Write
) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    path = write(uris=[f"ldaps://127.0.0.1:{free_port()}"], tls={"ca_file": "ca.pem"})
    done = invoke("check", "-c", path)
    assert done.exit_code == 1
    assert "a file in the option tls cannot be used" in done.output


@pytest.mark.parametrize("scheme", ["ldap", "ldaps"])
def test_check_warns_of_a_server_that_is_away(invoke: Invoke, write: Write, scheme: str) -> None:
    canary = {"nickname": "@carol", "card_number": "3"}
    path = write(uris=[f"{scheme}://127.0.0.1:{free_port()}"], canary=canary)
    done = invoke("check", "-c", path)
    assert done.exit_code == 0
    assert "the server cannot be reached" in done.output
    assert "certificate" not in done.output


HUNG = {
    "plain": ("ldap", {}, 1),
    "StartTLS": ("ldap", {"start_tls": True}, 1),
    "client certificate": ("ldaps", {"bind": {"sasl": "external"}}, 2),
}


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "options", "workers"), HUNG.values(), ids=HUNG)
def test_stop_does_not_wait_for_a_server_that_accepts_and_does_not_respond(
    write: Write, scheme: str, options: dict[str, Any], workers: int
) -> None:
    """Neither does the next attempt to connect, and none leaves its connection open."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as hung:
        uri = f"{scheme}://127.0.0.1:{hung.getsockname()[1]}"
        config = CONFIG.replace("server: {", f"server: {{workers: {workers}, ")
        path = write(config, uris=[uri, uri], **options)
        with running(path) as service:
            hung.settimeout(10)
            accepted = [hung.accept()[0] for _ in range(3)]
            accepted[0].settimeout(10)
            while accepted[0].recv(4096):
                pass
            sent = time.monotonic()
            service.send_signal(signal.SIGTERM)
            code = service.wait()
            assert time.monotonic() - sent < 5  # 0.1 s on an idle machine
            for each in accepted:
                each.close()
    assert code == 0
