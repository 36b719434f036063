"""``nickname_case: fold``: users are found whatever case they are asked for and stored in."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from support.processes.process import Invoke
from support.processes.service import CONFIG, KEY, Client, Reply, serving

FOLD = "identifiers: {nickname_case: fold, nickname_pattern: '[a-z.]+'}\n"
YAML = "  - {name: users, kind: yaml, path: users.yaml}\n"
SQLITE = "  - {name: users, kind: sqlite, path: users.db}\n"
ORIGIN = f"""\
  - {{{{name: origin, kind: upstream, auth: {{{{kind: bearer, token: {KEY}}}}},
     base_url: 'http://127.0.0.1:{{port}}'{{more}}}}}}
"""
ALWAYS_ALICE = """,
     by_nickname: {url: /api/v1/identify/url, json: '{"input": "@Alice"}', repeatable: true,
       query: {nickname: '{nickname}'}},
     response: {plan: plan, card_number: card_number, nickname: nickname}"""
CARD = "4000123412341234"
TABLE = "CREATE TABLE users (nickname TEXT, card_number TEXT UNIQUE, plan TEXT);"
NOCASE = "CREATE UNIQUE INDEX by_nickname ON users (nickname COLLATE NOCASE);"


def found(reply: Reply) -> dict[str, str]:
    assert reply.status == 200, reply.body
    record = json.loads(reply.body)
    return {name: record[name] for name in ("nickname", "profile_url")}


def write_table(folder: Path, script: str, *nicknames: str | bytes) -> None:
    with closing(sqlite3.connect(folder / "users.db")) as database, database:
        database.executescript(script)
        rows = [(nickname, str(int(CARD) + i)) for i, nickname in enumerate(nicknames)]
        database.executemany("INSERT INTO users VALUES (?, ?, 'Free')", rows)


def write_fixture(folder: Path, *nicknames: str) -> None:
    users = "".join(
        f"  - {{nickname: {nickname}, card_number: {int(CARD) + i}, plan: Free}}\n"
        for i, nickname in enumerate(nicknames)
    )
    (folder / "users.yaml").write_text(f"users:\n{users}", encoding="utf-8")


@contextmanager
def client(folder: Path, backend: str, more: str = FOLD) -> Iterator[Client]:
    with serving(more + CONFIG + backend, folder) as service:
        yield Client(service.port)


def test_a_user_stored_with_capitals_is_found_in_any_case(tmp_path: Path) -> None:
    """The pattern sees the folded nickname; the response shows it, asked by card too.

    Also behind a proxy.
    """
    write_table(tmp_path, TABLE, "Ali.Ce", "bob")
    (tmp_path / "proxy").mkdir()
    expected = {"nickname": "@ali.ce", "profile_url": "https://profiles.example/m/ali.ce"}
    with (
        client(tmp_path, SQLITE) as origin,
        client(tmp_path / "proxy", ORIGIN.format(port=origin.port, more="")) as proxy,
    ):
        for asked in (origin, proxy):
            for text in ("@ali.ce", "@ALI.CE", "https://profiles.example/m/Ali.Ce"):
                assert found(asked.by_input(text)) == expected
            assert found(asked.by_card(CARD)) == expected
            assert asked.by_input("@ali").status == 404
            assert asked.by_input("@ali_ce").status == 422


def test_an_upstream_response_in_another_case_is_of_the_same_user(tmp_path: Path) -> None:
    """The origin ignores case, as the query shows, and answers with the nickname as stored."""
    write_fixture(tmp_path, "Alice")
    (tmp_path / "proxy").mkdir()
    with (
        client(tmp_path, YAML, "") as origin,
        client(tmp_path / "proxy", ORIGIN.format(port=origin.port, more=ALWAYS_ALICE)) as asked,
    ):
        assert found(asked.by_input("@ALICE"))["nickname"] == "@alice"
        assert asked.by_input("@bob").status == 503


def test_fixture_users_that_fold_to_one_nickname_are_a_problem(
    tmp_path: Path, invoke: Invoke
) -> None:
    write_fixture(tmp_path, "Alice", "bob", "alicE")
    path = tmp_path / "config.yaml"
    path.write_text(FOLD + CONFIG + YAML, encoding="utf-8")
    result = invoke("check", "-c", path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.endswith(
        "users.yaml:4:6: users[2].nickname: lines 2 and 4 hold the same nickname "
        "(nickname_case is fold)\n"
    )


@pytest.mark.parametrize(
    ("script", "warned"),
    [
        (TABLE + NOCASE, False),
        (TABLE.replace("nickname TEXT", "nickname TEXT COLLATE NOCASE UNIQUE"), False),
        (TABLE.replace("nickname TEXT", "nickname TEXT UNIQUE"), True),
    ],
    ids=["an index", "a column", "an index that tells case apart"],
)
def test_check_warns_unless_an_index_ignores_case(
    tmp_path: Path, invoke: Invoke, script: str, *, warned: bool
) -> None:
    """The statement that it prints makes the warning go away."""
    write_table(tmp_path, script, "Alice")
    path = tmp_path / "config.yaml"
    path.write_text(FOLD + CONFIG + SQLITE, encoding="utf-8")
    warnings = invoke("check", "-c", path).stderr
    assert ("a lookup by nickname reads the whole table" in warnings) is warned
    if warned:
        _, _, statement = warnings.strip().partition("this one does: ")
        assert statement.endswith("COLLATE NOCASE)")
        with closing(sqlite3.connect(tmp_path / "users.db")) as database:
            database.execute(statement)
    assert invoke("check", "-c", path).stderr == ""
