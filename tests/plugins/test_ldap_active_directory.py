"""The LDAP backend over a real Active Directory, that of Samba."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from support.databases.active_directory import (
    ACCOUNT,
    PASSWORD,
    STAFF,
    ActiveDirectory,
    account,
    require,
)
from support.processes.ports import free_port
from support.processes.process import Invoke, ServiceProcess, eventually, running
from support.processes.service import CONFIG, Client
from tornado_idv import StartError
from tornado_idv.registry import open_backends
from tornado_idv.testing import make_backend

require()

from idv_ldap.backend import LdapBackend  # noqa: E402

pytestmark = pytest.mark.slow

NO_PLACE = f"ldap://127.0.0.1:{free_port()}"
ENTRIES = [account("alice", "employeeType: Pro", card="4000123412341234")]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ActiveDirectory]:
    high, low = divmod(os.getpid() % 64_000, 250)
    folder = tmp_path_factory.mktemp("ad") / "dc1"
    made = ActiveDirectory(folder, f"127.77.{high}.{low + 1}", ENTRIES)
    made.start()
    yield made
    made.stop()


def options(directory: ActiveDirectory, password: str, **changed: Any) -> dict[str, Any]:
    return {
        "uris": [directory.uri],
        "tls": {"ca_file": f"{directory.folder}/ca.pem"},
        "bind": {"dn": ACCOUNT, "password": password},
        "base_dn": STAFF,
        "by_nickname": {"filter": "(sAMAccountName={nickname})"},
        "by_card": {"filter": "(employeeNumber={card_number})"},
        "response": {
            "nickname": "samaccountname",  # an attribute by another case than the server's
            "card_number": "employeeNumber",
            "plan": {"path": "employeeType", "default": "Free"},
        },
        **changed,
    }


def serving(
    folder: Path, server: str = "{port: 0}", **options: Any
) -> AbstractContextManager[ServiceProcess]:
    """Run a process, or more, with the directory as the only backend."""
    return running(config_file(folder, server, **options))


def config_file(folder: Path, server: str = "{port: 0}", **options: Any) -> Path:
    text = re.sub("server: .*", f"server: {server}\ncache: {{failure_memo: 0s}}", CONFIG)
    path = folder / "config.yaml"
    backend = {"name": "staff", "kind": "ldap", "timeout": "5s", **options}
    path.write_text(f"{text}  - {json.dumps(backend)}\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("first", ["another that refuses", "one that is down"])
def test_refused_password_is_tried_once_by_all_processes_and_servers(
    directory: ActiveDirectory, tmp_path: Path, first: str
) -> None:
    """The service starts, since a service manager would start it until the account is locked."""
    directory.reset_bad_passwords()
    file = tmp_path / "password"
    file.write_text(f"wrong password beside {first}")
    uris = [f"{directory.uri}:3269" if "refuses" in first else NO_PLACE, directory.uri]
    given = options(directory, f"${{file:{file}}}", uris=uris)
    with serving(tmp_path, "{port: 0, workers: 4}", **given) as service:
        client = Client(service.port)
        until = time.monotonic() + 3  # some attempts, if there were one each second
        while time.monotonic() < until:
            assert client.by_input("@alice").status == 503
        assert directory.bad_passwords == 1
        refused = "the server refuses bind.dn or its password (data 52e); lookups fail until"
        assert service.read_log().count(refused) == 4
        file.write_text(PASSWORD)
        eventually(lambda: client.by_input("@alice").status == 200)
        assert not directory.is_locked


def test_reload_with_a_refused_password_keeps_the_old_one(
    directory: ActiveDirectory, tmp_path: Path
) -> None:
    given = options(directory, PASSWORD)
    with serving(tmp_path, "{port: 0, workers: 2, watch_config: true}", **given) as service:
        client = Client(service.port)
        eventually(lambda: client.by_input("@alice").status == 200)
        directory.reset_bad_passwords()
        changed = options(directory, "wrong password of a reload")
        config_file(tmp_path, "{port: 0, workers: 2, watch_config: true}", **changed)
        eventually(lambda: "configuration not reloaded" in service.read_log())
        assert directory.bad_passwords == 1
        assert client.by_input("@alice").status == 200
        assert client.by_input("@nobody").status == 404


@pytest.mark.parametrize(
    ("command", "code"), [(("check",), 1), (("ldap", "try", "staff", "@alice"), 3)], ids=str
)
def test_command_tries_a_refused_password_once(
    directory: ActiveDirectory, tmp_path: Path, invoke: Invoke, command: tuple[str, ...], code: int
) -> None:
    directory.reset_bad_passwords()
    uris = [f"{directory.uri}:3269", directory.uri]
    path = config_file(tmp_path, **options(directory, f"wrong for {command}", uris=uris))
    done = invoke(*command, "-c", path)
    assert done.exit_code == code
    assert "the server refuses bind.dn or its password (data 52e)" in done.output
    assert directory.bad_passwords == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"by_card": {"filter": "(emplNumber={card_number})"}},
        {"by_nickname": {"filter": "(&(objectClass=user)(sAMAcountName={nickname}))"}},
    ],
    ids=str,
)
async def test_attribute_that_the_schema_lacks_stops_the_start(
    directory: ActiveDirectory, tmp_path: Path, changed: dict[str, Any]
) -> None:
    backend = make_backend(LdapBackend, tmp_path, **options(directory, PASSWORD, **changed))
    with pytest.raises(StartError, match=r"the server has no attribute (emplNumber|sAMAcountName)"):
        async with open_backends([backend]):
            pass
