"""The page of recipes is true: each entry in it works in front of a server of its style."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import idv_upstream
from support.http.threaded_server import serving_in_thread
from support.processes.service import KEY, Client, serving
from support.recipes import servers as peers
from support.recipes.peer_process import Serve, Servers
from support.recipes.servers import (
    COUCH_PASSWORD,
    DIRECTUS_TOKEN,
    KEYCLOAK_SECRET,
    POCKETBASE_PASSWORD,
    PROFILE,
    SCIM_TOKEN,
    USERS,
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
    """The file that the entry names, and what belongs into it."""
    folds: bool = False
    """Whether the directory finds a nickname in whatever case."""
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
    Recipe("Directus", peers.directus_imitation, ("directus.token", DIRECTUS_TOKEN)),
    Recipe("PocketBase", peers.pocketbase_imitation, ("pocketbase.password", POCKETBASE_PASSWORD)),
    Recipe("Keycloak", peers.keycloak_imitation, ("keycloak.secret", KEYCLOAK_SECRET), folds=True),
    Recipe("This service itself", peers.itself, ("directory.key", KEY), tells_profile_url=True),
]
WITH_SECRET = [recipe for recipe in RECIPES if recipe.secret]
WITH_PATH = [recipe for recipe in RECIPES if recipe.tells_wrong_path]
BY_TITLE = {recipe.title: recipe for recipe in RECIPES}


def title(recipe: Recipe) -> str:
    return recipe.title.replace(" ", "-")


each_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=title)


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
    """What the page has the operator write."""
    (entry,) = re.findall(r"^```yaml\n(.*?)^```", SECTIONS[recipe.title], re.MULTILINE | re.DOTALL)
    return str(entry)


def replaced(text: str, pattern: str, by: str) -> str:
    changed, times = re.subn(pattern, by, text)
    assert times == 1, f"{pattern} is there {times} times"
    return changed


def test_every_recipe_of_the_page_is_tested() -> None:
    assert list(SECTIONS) == [recipe.title for recipe in RECIPES]


@each_recipe
def test_users_are_found(servers: Servers, tmp_path: Path, recipe: Recipe) -> None:
    """One has plain values, another odd ones; the last is the canary."""
    with in_front_of(servers.address(recipe.serve), recipe, tmp_path, canary=True) as client:
        for user in USERS:
            replies = [
                client.by_input(f"@{user.nickname}"),
                client.by_input(f"https://profiles.example/m/{user.nickname}"),
                client.by_card(user.card_number),
            ]
            assert [reply.status for reply in replies] == [200, 200, 200]
            assert [json.loads(reply.body) for reply in replies] == [recipe.record(user)] * 3


@each_recipe
def test_absent_user_is_not_found(servers: Servers, tmp_path: Path, recipe: Recipe) -> None:
    """Part of a name, something longer, and a card without its zeros are other users."""
    nicknames = ["nobody", "alic", "alice2", "a-b-c_D", "...a", "4000123412341234", "null"]
    if not recipe.folds:
        nicknames.append("ALICE")
    cards = ["4999999999999999", "12345670", "04000123412341234", "0"]
    with in_front_of(servers.address(recipe.serve), recipe, tmp_path, canary=True) as client:
        replies = [*(client.by_input(f"@{nickname}") for nickname in nicknames)]
        replies += [client.by_card(card) for card in cards]
    asked = [*nicknames, *cards]
    assert {
        name: (reply.status, reply.code) for name, reply in zip(asked, replies, strict=True)
    } == dict.fromkeys(asked, (404, "not_found"))


def test_case_insensitive_recipe_finds_a_user_in_any_case(servers: Servers, tmp_path: Path) -> None:
    recipe, _ = [each for each in RECIPES if each.folds]
    with in_front_of(servers.address(recipe.serve), recipe, tmp_path) as client:
        reply = client.by_input("@ALICE")
    assert json.loads(reply.body)["profile_url"] == PROFILE


def test_case_insensitive_answer_is_503_where_case_is_preserved(
    servers: Servers, tmp_path: Path
) -> None:
    """Where this service preserves it, the answer is of another user than asked for."""
    recipe, _ = [each for each in RECIPES if each.folds]
    misfit = ("nickname_case: fold", "nickname_case: preserve")
    with in_front_of(servers.address(recipe.serve), recipe, tmp_path, misfit) as client:
        assert [client.by_input(f"@{name}").status for name in ("alice", "ALICE")] == [200, 503]


@pytest.mark.parametrize("recipe", WITH_SECRET, ids=title)
def test_rejected_secret_is_never_not_found(
    servers: Servers, tmp_path: Path, recipe: Recipe
) -> None:
    assert recipe.secret
    wrong = replace(recipe, secret=(recipe.secret[0], "another-secret-than-that"))
    with in_front_of(servers.address(recipe.serve), wrong, tmp_path) as client:
        assert is_unavailable(client)


@pytest.mark.parametrize("recipe", WITH_PATH, ids=title)
def test_wrong_path_is_never_not_found(servers: Servers, tmp_path: Path, recipe: Recipe) -> None:
    address = servers.address(recipe.serve) + "/elsewhere"
    with in_front_of(address, recipe, tmp_path) as client:
        assert is_unavailable(client)


def test_wrong_path_with_usual_404_is_noticed_by_canary(servers: Servers, tmp_path: Path) -> None:
    recipe = BY_TITLE["Plain REST"]
    address = servers.address(recipe.serve) + "/elsewhere"
    with in_front_of(address, recipe, tmp_path) as client:
        assert client.by_input("@alice").status == 404
    with in_front_of(address, recipe, tmp_path, canary=True) as client:
        assert is_unavailable(client)


MISFITS = (
    ("A list with a filter", "query: {id:", "query: {login:"),
    ("SCIM 2.0", "userName eq", "userName is"),
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
    servers: Servers, tmp_path: Path, name: str, old: str, new: str
) -> None:
    """Everybody instead of one, a refused filter or query, a plan without a name, another alias."""
    recipe = BY_TITLE[name]
    with in_front_of(servers.address(recipe.serve), recipe, tmp_path, (old, new)) as client:
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
        server.archived = {"alice"}
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
        server.tokens.clear()
        replies = [client.by_input("@a.b-c_D"), client.by_card("4999999999999998")]
        assert [reply.status for reply in replies] == [503, 503]


def test_rows_that_postgresql_hides_are_never_not_found(tmp_path: Path) -> None:
    """Row-level security hides them without an error."""
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


@pytest.mark.parametrize("serve", {each.serve: None for each in RECIPES}, ids=lambda f: f.__name__)
def test_stopped_server_is_never_not_found(servers: Servers, tmp_path: Path, serve: Serve) -> None:
    """A user found just before is served stale; every other request gets 503."""
    with ExitStack() as stack:
        clients = []
        for recipe in RECIPES:
            if recipe.serve == serve:
                folder = tmp_path / title(recipe)
                folder.mkdir()
                address = servers.address(serve)
                clients.append(stack.enter_context(in_front_of(address, recipe, folder)))
        for client in clients:
            assert client.by_input("@alice").status == 200
        servers.stop(serve)
        for client in clients:
            assert is_unavailable(client)
            assert client.by_input("@alice").status == 200


def is_unavailable(client: Client) -> bool:
    """Return whether existing and absent users both get 503."""
    replies = [
        client.by_input("@a.b-c_D"),
        client.by_input("@nobody"),
        client.by_card("4999999999999999"),
    ]
    return {(each.status, each.code) for each in replies} == {(503, "backend_unavailable")}
