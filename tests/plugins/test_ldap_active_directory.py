"""The LDAP backend over a real Active Directory, that of Samba."""

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from support.databases.active_directory import (
    BASE,
    DISABLED,
    PASSWORD,
    STAFF,
    ActiveDirectory,
    account,
    require,
    unit,
)
from support.fakes.outcomes import outcome
from support.processes.ports import free_port
from support.processes.process import eventually, running
from support.processes.service import CONFIG, Client
from tornado_idv import ByCard, ByNickname, User, yaml_loader
from tornado_idv.kit.testing import make_backend
from tornado_idv.registry import opened_backend

require()

import idv_ldap  # noqa: E402
from idv_ldap.backend import LdapBackend  # noqa: E402

pytestmark = pytest.mark.slow

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
    async with opened_backend(backend):
        assert "CN=NTDS Settings," in backend._pool._open[0].server  # noqa: SLF001 - connections of which no lookup tells
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
    directory: ActiveDirectory, tmp_path: Path
) -> None:
    """The rights that it names are enough; with all but one no user is found or missing."""
    rights = {"employeeNumber", "employeeType", "userAccountControl"}
    places = {each: f"OU=without {each},{BASE}" for each in rights - {"employeeType"}}
    for each, place in places.items():
        directory.modify(unit(place), account(f"no{each}"[:20], card="30", parent=place))

    async def results(lacking: str, *allowed: str) -> list[str]:
        directory.allow_reading(places[lacking], *allowed)
        given = {**recipe(directory), "base_dn": places[lacking]}
        async with opened_backend(make_backend(LdapBackend, tmp_path, **given)) as backend:
            queries = [ByNickname(f"no{lacking}"[:20]), ByCard("30"), ByCard("31")]
            return [(await outcome(backend, each)).partition(":")[0] for each in queries]

    with directory.hardened():
        lacking = "userAccountControl"
        assert await results(lacking, *rights - {lacking}) == ["broken", "broken", "not found"]
        assert await results(lacking, lacking) == ["found", "found", "not found"]
        lacking = "employeeNumber"
        assert await results(lacking, *rights - {lacking}) == ["broken"] * 3


def test_refused_password_is_tried_once_by_all_processes_and_servers(
    directory: ActiveDirectory, tmp_path: Path
) -> None:
    """The service starts, since a service manager would start it until the account is locked."""
    password, path = tmp_path / "password", tmp_path / "config.yaml"
    password.write_text("wrong password")
    backend: dict[str, Any] = recipe(directory) | {
        "uris": [f"ldap://127.0.0.1:{free_port()}", f"{directory.uri}:3269", directory.uri]
    }
    del backend["canary"]
    backend["bind"]["password"] = f"${{file:{password}}}"
    text = CONFIG.replace("server: {", "cache: {failure_memo: 0s}\nserver: {workers: 4, ")
    path.write_text(f"{text}  - {json.dumps(backend)}\n", encoding="utf-8")
    with running(path) as service:
        client = Client(service.port)
        until = time.monotonic() + 1.5  # another attempt, if there were one each second
        while time.monotonic() < until:
            time.sleep(0.02)
            assert client.by_input("@alice").status == 503
        assert directory.bad_passwords == 1
        refused = "the server refuses bind.dn or its password (data 52e); lookups fail until"
        assert service.read_log().count(refused) == 4
        password.write_text(PASSWORD)
        eventually(lambda: client.by_input("@alice").status == 200)
