"""The LDAP backend over a real Active Directory, that of Samba."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from support.databases.active_directory import (
    ACCOUNT,
    BASE,
    DISABLED,
    PASSWORD,
    STAFF,
    ActiveDirectory,
    account,
    index,
    require,
    unit,
)
from support.fakes.clock_and_backends import LoopClock
from support.fakes.outcomes import outcome
from support.processes.ports import free_port
from support.processes.process import Invoke, eventually, running
from support.processes.service import CONFIG, Client
from tornado_idv import ByCard, ByNickname, User, yaml_loader
from tornado_idv.kit.testing import make_backend
from tornado_idv.registry import open_backends

require()

import idv_ldap  # noqa: E402
from idv_ldap.backend import LdapBackend  # noqa: E402

pytestmark = pytest.mark.slow

NO_PLACE = f"ldap://127.0.0.1:{free_port()}"
DEEP = f"OU=night shift,OU=warehouse,{STAFF}"
ENTRIES = [
    unit(f"OU=warehouse,{STAFF}"),
    unit(DEEP),
    account("alice", "employeeType: Pro", card="4000123412341234"),
    account("bob", "employeeType: 77", card="5"),
    account("Carol.O-Neil", card="0012345670"),
    account("deep", card="11", parent=DEEP),
    account("former", card="12", control=DISABLED),
    account("rehired", card="12", parent=DEEP),
    account("disabled", card="13", control=DISABLED),
    account("twin1", card="14"),
    account("twin2", card="14"),
    account("numberless"),
    account("expired", "accountExpires: 129000000000000000", card="15"),
    account("deleted", card="16"),
    account("machine$", card="17", kind="computer", control=4096),
    f"dn: CN=contact,{STAFF}\nchangetype: add\nobjectClass: contact\n\n",
    f"dn: CN=club,{STAFF}\nchangetype: add\nobjectClass: group\nsAMAccountName: club\n\n",
    account("elsewhere", card="19", parent=f"CN=Users,{BASE}"),
    f"dn: CN=deleted,{STAFF}\nchangetype: delete\n\n",
]
USERS = {
    "alice": ("4000123412341234", "Pro"),
    "bob": ("5", "77"),
    "carol.o-neil": ("0012345670", "Free"),
    "deep": ("11", "Free"),
    "rehired": ("12", "Free"),
    "expired": ("15", "Free"),
    "twin1": ("14", "Free"),
    "twin2": ("14", "Free"),
}
ABSENT = ["former", "disabled", "deleted", "machine", "contact", "club", "elsewhere", "nobody"]
ABSENT_CARDS = ["13", "16", "17", "18", "19", "012345670", "6"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ActiveDirectory]:
    high, low = divmod(os.getpid() % 64_000, 250)
    folder = tmp_path_factory.mktemp("ad") / "dc1"
    made = ActiveDirectory(folder, f"127.77.{high}.{low + 1}", ENTRIES)
    made.start()
    yield made
    made.stop()


def recipe(directory: ActiveDirectory) -> dict[str, Any]:
    """Return the example of the README, for this server."""
    text = Path(idv_ldap.__file__).with_name("README.md").read_text(encoding="utf-8")
    _, example = re.findall(r"^```yaml\n(identifiers:.*?)^```", text, re.DOTALL | re.MULTILINE)
    config = yaml_loader.read(example.encode(), "README.md")
    (given,) = config["backends"]
    given["uris"], given["tls"] = [directory.uri], {"ca_file": f"{directory.folder}/ca.pem"}
    given["bind"]["password"] = PASSWORD
    # The canary is not among the users; without one, results are users.
    return {**given, "timeout": "5s", "canary": None}


async def test_recipe_of_the_readme_finds_who_is_enabled(
    directory: ActiveDirectory, tmp_path: Path
) -> None:
    backend = make_backend(LdapBackend, tmp_path, **recipe(directory))
    async with open_backends([backend]):
        for nickname, (card, plan) in USERS.items():
            user = User(plan, card, nickname)
            found = await backend.find(ByNickname(nickname))
            assert isinstance(found, User)
            assert replace(found, nickname=found.nickname.lower()) == user
            if not nickname.startswith("twin"):
                assert await backend.find(ByCard(card)) == found
        for query in (*map(ByNickname, ABSENT), *map(ByCard, ABSENT_CARDS)):
            assert await backend.find(query) is None, query
        assert await outcome(backend, ByCard("14")) == "broken: more than one user for one query"
        assert "card_number (employeeNumber)" in await outcome(backend, ByNickname("numberless"))


async def test_recipe_of_the_readme_notices_a_missing_right(
    directory: ActiveDirectory, without_rights: Callable[[], None], tmp_path: Path
) -> None:
    """The rights that it names are enough; with all but one no user is found or missing."""
    rights = {"employeeNumber", "employeeType", "userAccountControl"}
    places = {
        each: f"OU=without {each},{BASE}" for each in ("employeeNumber", "userAccountControl")
    }
    for each, place in places.items():
        directory.modify(unit(place), account(f"no{each}"[:20], card="30", parent=place))
    without_rights()

    async def results(lacking: str, *allowed: str) -> list[str]:
        directory.allow_reading(places[lacking], *allowed)
        given = {**recipe(directory), "base_dn": places[lacking]}
        async with open_backends([make_backend(LdapBackend, tmp_path, **given)]) as (backend,):
            queries = [ByNickname(f"no{lacking}"[:20]), ByCard("30"), ByCard("31")]
            return [(await outcome(backend, each)).partition(":")[0] for each in queries]

    lacking = "userAccountControl"
    assert await results(lacking, *rights - {lacking}) == ["broken", "broken", "not found"]
    assert await results(lacking, lacking) == ["found", "found", "not found"]
    lacking = "employeeNumber"
    assert await results(lacking, *rights - {lacking}) == ["broken"] * 3


def options(directory: ActiveDirectory, password: str, **changed: Any) -> dict[str, Any]:
    return {
        "uris": [directory.uri],
        "tls": {"ca_file": f"{directory.folder}/ca.pem"},
        "bind": {"dn": ACCOUNT, "password": password},
        "base_dn": STAFF,
        "by_nickname": {"filter": "(sAMAccountName={nickname})"},
        "by_card": {"filter": "(&(objectCategory=person)(employeeNumber={card_number}))"},
        "response": {
            "nickname": "samaccountname",  # an attribute by another case than the server's
            "card_number": "employeeNumber",
            "plan": {"path": "employeeType", "default": "Free"},
        },
        **changed,
    }


def config_file(folder: Path, server: str = "{port: 0}", **options: Any) -> Path:
    text = re.sub("server: .*", f"server: {server}\ncache: {{failure_memo: 0s}}", CONFIG)
    path = folder / "config.yaml"
    backend = {"name": "staff", "kind": "ldap", "timeout": "5s", **options}
    path.write_text(f"{text}  - {json.dumps(backend)}\n", encoding="utf-8")
    return path


def test_refused_password_is_tried_once_by_all_processes_and_servers(
    directory: ActiveDirectory, tmp_path: Path
) -> None:
    """The service starts, since a service manager would start it until the account is locked."""
    directory.reset_bad_passwords()
    file = tmp_path / "password"
    file.write_text("wrong password")
    uris = [NO_PLACE, f"{directory.uri}:3269", directory.uri]
    given = options(directory, f"${{file:{file}}}", uris=uris)
    with running(config_file(tmp_path, "{port: 0, workers: 4}", **given)) as service:
        client = Client(service.port)
        until = time.monotonic() + 2.2  # some attempts, if there were one each second
        while time.monotonic() < until:
            time.sleep(0.02)
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
    section = "{port: 0, workers: 2, watch_config: true}"
    given = options(directory, PASSWORD)
    with running(config_file(tmp_path, section, **given)) as service:
        client = Client(service.port)
        eventually(lambda: client.by_input("@alice").status == 200)
        directory.reset_bad_passwords()
        changed = options(directory, "wrong password of a reload")
        config_file(tmp_path, section, **changed)
        eventually(lambda: "configuration not reloaded" in service.read_log())
        assert directory.bad_passwords == 1
        assert client.by_input("@alice").status == 200
        assert client.by_input("@nobody").status == 404


@pytest.mark.parametrize(
    ("command", "code"), [(("check",), 1), (("lookup", "@alice", "--steps"), 3)], ids=str
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


@pytest.fixture
def without_rights(directory: ActiveDirectory) -> Iterator[Callable[[], None]]:
    """Yield a function that takes the rights of a domain's members to read their users' data.

    It is what hardening a domain does; a server applies it when a client binds again.
    """
    dn = f"CN=Pre-Windows 2000 Compatible Access,CN=Builtin,{BASE}"
    member = f"member: CN=S-1-5-11,CN=ForeignSecurityPrincipals,{BASE}\n\n"

    def change(operation: str) -> None:
        directory.modify(f"dn: {dn}\nchangetype: modify\n{operation}: member\n{member}")

    yield lambda: change("delete")
    change("add")


async def test_attribute_that_may_not_be_read_any_more_is_no_missing_user(
    directory: ActiveDirectory, without_rights: Callable[[], None], tmp_path: Path
) -> None:
    """A filter by a card number finds no user, whereas nicknames may still be read."""
    given = options(directory, PASSWORD, max_age="100ms", timeout="5s")
    broken = "broken: the filter finds no entry for any value"
    async with open_backends([make_backend(LdapBackend, tmp_path, **given)]) as (backend,):

        async def is_broken() -> bool:
            both = [await outcome(backend, ByCard(f"400012341234123{last}")) for last in "45"]
            return all(each.startswith(broken) for each in both)

        assert await outcome(backend, ByCard("4000123412341234")) == "found"
        assert await outcome(backend, ByCard("4000123412341235")) == "not found"
        without_rights()
        for _ in range(500):
            if await is_broken():
                break
            await asyncio.sleep(0.01)
        assert await is_broken()
        assert await outcome(backend, ByNickname("nobody")) == "not found"


async def test_index_that_is_not_filled_is_no_missing_user(
    directory: ActiveDirectory, tmp_path: Path
) -> None:
    """Samba searches by a new index before it has filled that, which a restart does."""
    backend = make_backend(
        LdapBackend,
        tmp_path,
        **options(
            directory,
            PASSWORD,
            by_card={"filter": "(employeeType={card_number})"},
            response={"nickname": "cn", "card_number": "employeeType", "plan": "cn"},
            timeout="5s",
        ),
    )
    async with open_backends([backend]):
        assert await outcome(backend, ByCard("77")) == "found"
        directory.modify(index("Employee-Type"))
        results, clock = ["found"], LoopClock()
        while results[-1] == "found" and len(results) < 500:  # until the server uses the index
            clock.forward(1.0)
            results.append(await outcome(backend, ByCard("77")))
        assert "the server's index lacks a stored employeeType" in results[-1]
        directory.stop()
        directory.start()
        while results[-1] != "found" and len(results) < 500:
            await asyncio.sleep(0.01)
            results.append(await outcome(backend, ByCard("77")))
        assert results[-1] == "found"
        assert "not found" not in results
        assert await outcome(backend, ByCard("78")) == "not found"
