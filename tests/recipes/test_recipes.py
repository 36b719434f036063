"""The page of recipes is true: each entry in it works in front of a server of its style."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

import idv_upstream
from support.http.threaded_server import serving_in_thread
from support.processes.service import KEY, Client, serving
from support.recipes import servers as peers
from support.recipes.servers import (
    COUCH_PASSWORD,
    DIRECTUS_TOKEN,
    KEYCLOAK_SECRET,
    POCKETBASE_PASSWORD,
    SCIM_TOKEN,
    USERS,
    Serve,
)
from tornado_idv import User

pytestmark = [pytest.mark.slow, pytest.mark.ci]

PAGE = Path(idv_upstream.__file__).with_name("RECIPES.md").read_text(encoding="utf-8")
SECTIONS = dict(section.split("\n", 1) for section in PAGE.split("\n## ")[1:])
BASE = f"""\
profile_sites: [https://profiles.example]
server: {{port: 0, request_timeout: 9s}}
auth: {{keys: [{{id: caller, token: {KEY}}}]}}
"""


@dataclass(frozen=True)
class Recipe:
    """What to expect of a recipe: its server, its secret and the fields that it returns."""

    title: str
    serve: Serve
    secret: tuple[str, str] | None = None
    folds: bool = False
    tells_profile_url: bool = False
    tells_wrong_path: bool = True
    """Whether an answer of a wrong path differs from that of an unknown user."""

    def record(self, user: User) -> dict[str, str]:
        nickname = user.nickname.lower() if self.folds else user.nickname
        own = user.profile_url if self.tells_profile_url else None
        return {
            "status": "ok",
            "plan": user.plan,
            "card_number": user.card_number,
            "nickname": f"@{nickname}",
            "profile_url": own or f"https://profiles.example/m/{nickname}",
        }


RECIPES = [
    Recipe("Plain REST", peers.json_server, tells_profile_url=True, tells_wrong_path=False),
    Recipe("A list with a filter", peers.json_server),
    Recipe(
        "SCIM 2.0",
        peers.scim2_server,
        secret=("scim.token", SCIM_TOKEN),
        folds=True,
        tells_profile_url=True,
    ),
    Recipe("Search by POST", peers.pouchdb_server, secret=("couch.password", COUCH_PASSWORD)),
    Recipe("GraphQL", peers.json_graphql_server, tells_wrong_path=False),
    Recipe("PostGraphile", peers.postgraphile),
    Recipe("Directus", peers.Directus.serve, ("directus.token", DIRECTUS_TOKEN)),
    Recipe("PocketBase", peers.PocketBase.serve, ("pocketbase.password", POCKETBASE_PASSWORD)),
    Recipe("Keycloak", peers.Keycloak.serve, ("keycloak.secret", KEYCLOAK_SECRET), folds=True),
    Recipe("This service itself", peers.itself, ("directory.key", KEY), tells_profile_url=True),
]
BY_TITLE = {recipe.title: recipe for recipe in RECIPES}


@pytest.fixture(scope="session")
def address_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Serve], str]]:
    """The address of a server, which is started when it is first needed."""
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp
        yield cache(lambda serve: stack.enter_context(serve(folder("server"))))


@contextmanager
def in_front_of(
    address: str,
    recipe: Recipe,
    folder: Path,
    misfit: tuple[str, str] | None = None,
    *,
    canary: bool = False,
) -> Iterator[Client]:
    """This service with the entry from the page, in which only the host is another.

    It has time, since the machine that tests may be busy. ``misfit`` is something in the
    entry, and what an operator wrote instead. Without ``canary`` the entry is true by itself.
    """
    entry = re.sub(r"https://[a-z]+\.example", address, entry_of(recipe))
    entry = replaced(entry, "kind: upstream\n", "kind: upstream\n    timeout: 8s\n")
    if not canary:
        entry = replaced(entry, "    canary: .*\n", "")
    if misfit:
        entry = replaced(entry, re.escape(misfit[0]), misfit[1])
    if recipe.secret:
        name, text = recipe.secret
        (folder / name).write_text(text, encoding="utf-8")
    with serving(BASE + entry, folder) as service:
        yield Client(service.port)


def entry_of(recipe: Recipe) -> str:
    (entry,) = re.findall(r"^```yaml\n(.*?)^```", SECTIONS[recipe.title], re.MULTILINE | re.DOTALL)
    return str(entry)


def replaced(text: str, pattern: str, by: str) -> str:
    changed, times = re.subn(pattern, by, text)
    assert times == 1, f"{pattern} is there {times} times"
    return changed


def test_every_recipe_of_the_page_is_tested() -> None:
    assert list(SECTIONS) == [recipe.title for recipe in RECIPES]


@pytest.mark.parametrize("recipe", RECIPES, ids=list(BY_TITLE))
def test_recipe_finds_its_users_and_no_other(
    address_of: Callable[[Serve], str], tmp_path: Path, recipe: Recipe
) -> None:
    nicknames = ["nobody", "alic", "alice2", "a-b-c_D", "...a", "4000123412341234", "null"]
    cards = ["4999999999999999", "12345670", "04000123412341234", "0"]
    with in_front_of(address_of(recipe.serve), recipe, tmp_path, canary=True) as client:
        for user in USERS:
            replies = [
                client.by_input(f"@{user.nickname}"),
                client.by_input(f"https://profiles.example/m/{user.nickname}"),
                client.by_card(user.card_number),
            ]
            assert [reply.status for reply in replies] == [200, 200, 200]
            assert [json.loads(reply.body) for reply in replies] == [recipe.record(user)] * 3
        absent = {name: client.by_input(f"@{name}") for name in nicknames}
        absent |= {card: client.by_card(card) for card in cards}
        other_case = client.by_input("@ALICE")
    assert {name: (each.status, each.code) for name, each in absent.items()} == dict.fromkeys(
        absent, (404, "not_found")
    )
    assert other_case.status == (200 if recipe.folds else 404)


@pytest.mark.parametrize("recipe", RECIPES, ids=list(BY_TITLE))
def test_rejected_secret_or_wrong_path_is_never_not_found(
    address_of: Callable[[Serve], str], tmp_path: Path, recipe: Recipe
) -> None:
    address = address_of(recipe.serve)
    if recipe.secret:
        wrong = replace(recipe, secret=(recipe.secret[0], "another-secret-than-that"))
        with in_front_of(address, wrong, tmp_path) as client:
            assert is_unavailable(client)
    canary = recipe.title == "Plain REST"
    if canary or recipe.tells_wrong_path:
        with in_front_of(f"{address}/elsewhere", recipe, tmp_path, canary=canary) as client:
            assert is_unavailable(client)


MISFITS = (
    ("A list with a filter", "query: {id:", "query: {login:"),
    ("SCIM 2.0", "userName eq", "userName is"),
    ("SCIM 2.0", "nickname_case: fold", "nickname_case: preserve"),
    ("Search by POST", '{"login": "{nickname}"}', '{"login": {"$is": "{nickname}"}}'),
    ("GraphQL", "{{id: $login}}) {{ id card plan", "{{id: $login}}) {{ id card tariff"),
    ("GraphQL", "select: data.found", "select: data.fund"),
    ("PostGraphile", "{{login: $login}}, first: 2) {{ nodes {{ login",
     "{{login: $login}}, first: 2) {{ nodes {{ nick"),
    ("PostGraphile", "select: data.found", "select: data.fund"),
    ("Directus", "plan: plan", "plan: tariff"),
    ("PocketBase", "login='{nickname}'", "nick='{nickname}'"),
    ("Keycloak", "query: {username:", "query: {name:"),
)  # fmt: skip


@pytest.mark.parametrize(("name", "old", "new"), MISFITS)
def test_unexpected_response_is_never_not_found(
    address_of: Callable[[Serve], str], tmp_path: Path, name: str, old: str, new: str
) -> None:
    """Everybody, a refused filter or query, another case, a plan without a name, another alias."""
    recipe = BY_TITLE[name]
    with in_front_of(address_of(recipe.serve), recipe, tmp_path, (old, new)) as client:
        reply = client.by_input("@a.b-c_D")
        absent = client.by_input("@nobody")
    assert (reply.status, reply.code) == (503, "backend_unavailable")
    assert absent.status == 503 or "fund" not in new


WORDS = tuple(User("Pro", f"70{n}", name) for n, name in enumerate(["true", "false", "null"]))


def test_rows_that_directus_hides_are_never_not_found(tmp_path: Path) -> None:
    recipe = BY_TITLE["Directus"]
    with (
        serving_in_thread(peers.Directus()) as server,
        in_front_of(f"http://127.0.0.1:{server.server_port}", recipe, tmp_path) as client,
    ):
        server.users = (*USERS, *WORDS, User("Pro", "77", "true1true"))
        for user in WORDS:
            for reply in (client.by_input(f"@{user.nickname}"), client.by_card(user.card_number)):
                assert json.loads(reply.body) == recipe.record(user)
        server.archived = ["alice"]
        assert client.by_input("@alice").status == 404
        server.users = ()
        assert is_unavailable(client)
        server.users, server.is_forbidden = USERS, True
        assert client.by_card("4999999999999998").status == 503


def test_records_that_pocketbase_hides_are_never_not_found(tmp_path: Path) -> None:
    """It answers a token that is not valid any more with an empty list."""
    recipe = BY_TITLE["PocketBase"]
    with (
        serving_in_thread(peers.PocketBase()) as server,
        in_front_of(f"http://127.0.0.1:{server.server_port}", recipe, tmp_path) as client,
    ):
        assert [client.by_input(f"@{name}").status for name in ("nobody", "alice")] == [404, 200]
        assert server.logins == 1
        server.valid_from = 2
        replies = [client.by_input("@a.b-c_D"), client.by_card("4999999999999998")]
        assert [reply.status for reply in replies] == [503, 503]


def test_rows_that_postgresql_hides_are_never_not_found(tmp_path: Path) -> None:
    recipe, folder = BY_TITLE["PostGraphile"], tmp_path / "server"
    folder.mkdir()
    with (
        peers.postgraphile_over_database(folder) as (address, database),
        in_front_of(address, recipe, tmp_path) as client,
    ):
        for user in WORDS:
            row = f"'{user.nickname}', '{user.card_number}', '{user.plan}'"
            database.run(f"INSERT INTO members VALUES ({row})")
            for reply in (client.by_input(f"@{user.nickname}"), client.by_card(user.card_number)):
                assert json.loads(reply.body) == recipe.record(user)
        assert client.by_input("@unknown").status == 404
        database.run("ALTER TABLE members ENABLE ROW LEVEL SECURITY")
        assert is_unavailable(client)
        database.run("CREATE POLICY all_rows ON members FOR SELECT USING (true)")
        assert client.by_card("4999999999999998").status == 404
        database.run("REVOKE SELECT ON members FROM idv")
        assert client.by_card("4999999999999997").status == 503


def is_unavailable(client: Client) -> bool:
    replies = [
        client.by_input("@a.b-c_D"),
        client.by_input("@nobody"),
        client.by_card("4999999999999999"),
    ]
    return {(each.status, each.code) for each in replies} == {(503, "backend_unavailable")}
