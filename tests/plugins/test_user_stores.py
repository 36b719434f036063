"""``tornado-idv users`` with each store: a SQLite file, one in WAL mode, and PostgreSQL."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from support.databases import sqlite_databases
from support.databases.postgres_server import Database
from support.databases.user_lists import ANY_LIST, HEADER, csv_row
from support.processes.process import Invoke
from tornado_idv import User

GRANT = "GRANT ALL ON users TO idv;"
LOOSE = "CREATE TABLE users (nickname TEXT, card_number TEXT, plan TEXT, since TEXT);"
SITE = "https://elsewhere.example"
MODES = [("import",), ("import", "--merge")]


@dataclass(frozen=True)
class Store:
    """The backend people, and the folder of its configuration and of imported lists."""

    invoke: Invoke
    folder: Path
    execute: Callable[[str], list[tuple[Any, ...]]]
    settings: str

    def run(self, name: str, *arguments: object, fold: bool = False) -> Result:
        config = self.folder / "config.yaml"
        config.write_text(
            "profile_sites: [https://profiles.example]\n"
            f"identifiers: {{nickname_case: {'fold' if fold else 'preserve'}}}\n"
            f"backends: [{{name: people, {self.settings}}}]\n"
        )
        return self.invoke("users", name, *arguments, "--config", config)

    def load(self, *users: User, options: tuple[str, ...] = MODES[0], fold: bool = False) -> Result:
        """Import a list of these users, and nothing else."""
        file = self.folder / "list.csv"
        file.write_text(HEADER + "".join(map(csv_row, users)))
        return self.run(*options, file, "--to", "people", "--json", fold=fold)

    def write(self, *users: User) -> None:
        """Put these users into the empty table."""
        assert not users or self.load(*users).exit_code == 0

    def export(self) -> str:
        """Return the lines of all users without the header."""
        return self.run("export", "--from", "people").stdout.removeprefix(HEADER)

    def create_loose(self, rows: str) -> None:
        """Replace the table by one without constraints and profile URLs, with these rows."""
        grant = GRANT if "postgres" in self.settings else ""
        self.execute(f"DROP TABLE users; {LOOSE} {grant} INSERT INTO users VALUES {rows}")


@pytest.fixture(params=["sqlite", "wal", pytest.param("postgres", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, invoke: Invoke, tmp_path: Path) -> Store:
    """Each store, with an empty table."""
    if request.param == "postgres":
        database: Database = request.getfixturevalue("database")

        def execute(script: str) -> list[tuple[Any, ...]]:
            lines = database.run(script).splitlines()
            return [tuple(cell or None for cell in line.split("|")) for line in lines]

        database.clear(sqlite_databases.USERS + GRANT)
        return Store(invoke, tmp_path, execute, f"kind: postgres, dsn: '{database.dsn}'")
    path = tmp_path / "people.db"
    mode = "WAL" if request.param == "wal" else "DELETE"
    sqlite_databases.run(path, f"PRAGMA journal_mode = {mode}; {sqlite_databases.USERS}")

    def select(script: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(path)) as connection:
            if not script.startswith("SELECT"):
                connection.executescript(script)
                return []
            return connection.execute(script).fetchall()

    return Store(invoke, tmp_path, select, "kind: sqlite, path: people.db")


def user(number: int, plan: str = "Free", url: str | None = None) -> User:
    return User(plan, str(number), f"user{number}", url)


def numbers(done: Result) -> tuple[int, ...]:
    """Return how many users were added, updated and removed, and rows rejected."""
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    return tuple(record[name] for name in ("added", "updated", "removed", "rejected"))


def problem(done: Result) -> str:
    assert done.exit_code == 1, done.output
    message: str = json.loads(done.stdout)["problems"][0]["message"]
    assert "nothing was changed" in message
    return message


@pytest.mark.parametrize("options", MODES, ids=["replace", "merge"])
def test_import_reports_what_it_changed(store: Store, options: tuple[str, ...]) -> None:
    """One of five users is removed, and two exchange their card numbers."""
    store.write(*(user(number) for number in range(5)))
    moved = [User("Free", "1", "user2"), User("Pro", "2", "user1")]
    done = store.load(user(0), *moved, user(3, "Pro"), user(5), user(6), options=options)
    merged = "--merge" in options
    assert numbers(done) == (2, 3, 0 if merged else 1, 0)
    assert json.loads(done.stdout)["imported"] == 6
    kept = [user(4)] if merged else []
    by_name = sorted([user(0), *moved, user(3, "Pro"), *kept, user(5), user(6)], key=name_of)
    assert store.export() == "".join(map(csv_row, by_name))


def name_of(one: User) -> str:
    return one.nickname


def test_import_says_what_it_changed(store: Store) -> None:
    store.write(*(user(number) for number in range(5)))
    file = store.folder / "list.csv"
    file.write_text(HEADER + "".join(csv_row(user(number)) for number in range(1, 5)))
    done = store.run("import", file, "--to", "people")
    said = "Imported 4 users into people: 0 added, 0 updated, 1 removed.\n"
    assert (done.exit_code, done.stderr) == (0, said)


@pytest.mark.parametrize("options", MODES, ids=["replace", "merge"])
def test_each_change_of_one_field_is_made(store: Store, options: tuple[str, ...]) -> None:
    """A profile URL comes, goes and changes; a plan and a card number change."""
    urls = [None, f"{SITE}/1", f"{SITE}/2", f"{SITE}/3"]
    before = [user(number, url=url) for number, url in enumerate(urls)]
    store.write(*before, user(4), user(5), user(6))
    new_urls = [f"{SITE}/0", None, f"{SITE}/other", f"{SITE}/3"]
    after = [user(number, url=url) for number, url in enumerate(new_urls)]
    after += [user(4, "Pro"), User("Free", "50", "user5"), user(6)]
    assert numbers(store.load(*after, options=options)) == (0, 5, 0, 0)
    assert store.export() == "".join(map(csv_row, after))


@pytest.mark.parametrize("options", MODES, ids=["replace", "merge"])
def test_case_of_a_nickname_is_changed_where_case_is_folded(
    store: Store, options: tuple[str, ...]
) -> None:
    store.create_loose("('Alice', '1', 'a', 'then'), ('BOB', '2', 'b', 'then')")
    users = [User("a", "1", "alice"), User("b", "2", "BOB")]
    assert numbers(store.load(*users, options=options, fold=True)) == (0, 1, 0, 0)
    rows = store.execute("SELECT nickname, since FROM users ORDER BY plan")
    assert rows == [("alice", "then"), ("BOB", "then")]


@pytest.mark.parametrize(("fold", "order"), [(True, "aBc"), (False, "Bac")])
def test_users_are_in_the_order_of_their_nicknames(store: Store, *, fold: bool, order: str) -> None:
    store.create_loose("('c', '1', 'x', NULL), ('B', '2', 'x', NULL), ('a', '3', 'x', NULL)")
    done = store.run("export", "--from", "people", fold=fold)
    assert "".join(line[0] for line in done.stdout.splitlines()[1:]) == order


def test_configured_columns_are_written_and_read(store: Store) -> None:
    store.create_loose("('alice', '1', 'Free', NULL)")
    columns = replace(store, settings=f"{store.settings}, columns: {{profile_url: since}}")
    users = [User("Free", "1", "alice", f"{SITE}/a"), User("Pro", "2", "bob", f"{SITE}/b")]
    assert numbers(columns.load(*users)) == (1, 1, 0, 0)
    assert columns.export() == "".join(map(csv_row, users))
    rows = store.execute("SELECT since FROM users ORDER BY plan")
    assert rows == [(f"{SITE}/a",), (f"{SITE}/b",)]


@pytest.mark.parametrize("options", MODES, ids=["replace", "merge"])
def test_user_with_a_profile_url_is_rejected_where_the_table_has_no_column_for_it(
    store: Store, options: tuple[str, ...]
) -> None:
    store.create_loose("('alice', '1', 'Free', NULL)")
    users = [User("Free", "1", "alice"), User("Pro", "2", "bob", f"{SITE}/b")]
    assert numbers(store.load(*users, options=(*options, *ANY_LIST))) == (0, 0, 0, 1)
    assert store.export() == csv_row(users[0])
    rejected = (store.folder / "list.csv.rejected").read_text()
    assert "list.csv:3: profile_url: the table has no column for it" in rejected


@pytest.mark.parametrize("options", MODES, ids=["replace", "merge"])
def test_stored_rows_without_a_nickname_or_card_number_do_not_hide_users(
    store: Store, options: tuple[str, ...]
) -> None:
    """A table without constraints may have them; equal rows keep their own columns."""
    store.create_loose(
        "(NULL, '1', 'a', 'then'), ('bob', NULL, 'b', 'then'), ('carl', '3', 'c', 'then')"
    )
    users = [User("b", "2", "bob"), User("c", "3", "carl"), User("d", "4", "dora")]
    done = store.load(*users, options=(*options, "--allow-shrink"))
    merged = "--merge" in options
    assert numbers(done) == (1, 1, 0 if merged else 1, 0)
    rows = store.execute("SELECT nickname, card_number, since FROM users ORDER BY plan")
    expected = [("bob", "2", None), ("carl", "3", "then"), ("dora", "4", None)]
    assert rows == ([(None, "1", "then"), *expected] if merged else expected)


def test_card_number_of_a_stored_row_without_a_nickname_is_not_taken(store: Store) -> None:
    store.create_loose("(NULL, '1', 'a', NULL)")
    users = [User("b", "1", "bob"), User("c", "2", "carl")]
    assert numbers(store.load(*users, options=(*MODES[1], *ANY_LIST))) == (1, 0, 0, 1)
    rows = store.execute("SELECT nickname, card_number FROM users ORDER BY plan")
    assert rows == [(None, "1"), ("carl", "2")]


def test_import_that_keeps_fewer_than_four_fifths_of_the_users_is_refused(store: Store) -> None:
    """Whatever number of new ones there is."""
    store.write(*(user(number) for number in range(10)))
    before = store.export()
    new = [user(number) for number in range(100, 200)]
    for kept, removed in (([0, 1, 2, 3, 4, 5, 6], 3), ([], 10)):
        message = problem(store.load(*map(user, kept), *new))
        assert f"{removed} of 10 users would be removed, and only {len(kept)} stay" in message
        assert "--allow-shrink" in message
        assert store.export() == before
    assert numbers(store.load(user(0), options=MODES[1])) == (0, 0, 0, 0)
    assert numbers(store.load(*map(user, range(8)))) == (0, 0, 2, 0)
    assert numbers(store.load(user(0), options=("import", "--allow-shrink"))) == (0, 0, 7, 0)
    assert store.export() == csv_row(user(0))


def test_import_with_too_many_rejected_rows_is_refused(store: Store) -> None:
    """Rows that are not valid, and those that only the store rejects."""
    store.write(user(0))
    users = [user(number) for number in range(199)]
    bad = User("Free", "x", "bad")
    assert numbers(store.load(*users[:198], bad, user(1))) == (197, 0, 0, 2)
    before = store.export()
    for more in ([bad], [user(2)]):
        message = problem(store.load(*users[:197], bad, user(1), *more))
        assert "3 of 200 rows are rejected, more than 1%; the first for line 199: card" in message
        assert f"; see {store.folder}/list.csv.rejected; nothing was changed" in message
        assert store.export() == before
    message = problem(
        store.load(*users[:99], user(1), options=("import", "--max-rejected", "0.9%"))
    )
    assert "1 of 100 rows are rejected, more than 0.9%" in message
    message = problem(store.load(*users[:99], user(1), options=(*MODES[1], "--strict")))
    assert "1 of 100 rows are rejected, more than 0%" in message
    assert store.export() == before
    done = store.load(*users, bad, user(1), user(2), options=("import", "--max-rejected", "1.5%"))
    assert numbers(done) == (1, 0, 0, 3)


def test_rejected_rows_are_in_the_order_of_the_list(store: Store) -> None:
    """Whatever finds them."""
    users = [user(0), user(1), User("Free", "0", "carl"), User("Free", "9", "user0")]
    assert numbers(store.load(*users, User("", "8", "x"), options=("import", *ANY_LIST)))[3] == 3
    lines = (store.folder / "list.csv.rejected").read_text().splitlines()
    assert [line.partition("list.csv:")[2].partition(":")[0] for line in lines] == ["6", "4", "5"]


def test_first_import_needs_no_option(store: Store) -> None:
    assert numbers(store.load(*map(user, range(10)))) == (10, 0, 0, 0)
    assert numbers(store.load(*map(user, range(10)))) == (0, 0, 0, 0)


def test_import_without_a_valid_user_is_refused_with_any_option(store: Store) -> None:
    store.write(user(0))
    message = problem(store.load(User("Free", "x", "bad"), options=("import", *ANY_LIST)))
    assert "has no valid user; the first for line 2: card_number: not in a valid" in message
    assert "has no valid user" in problem(store.load(options=("import", *ANY_LIST)))
    assert store.export() == csv_row(user(0))


@pytest.mark.parametrize("table", ["unique", "no index"])
def test_card_number_of_a_stored_user_whose_row_is_rejected_is_not_taken(
    store: Store, table: str
) -> None:
    """Two users exchange theirs; that of bob is carl's, who is not in the file."""
    names = ["alice", "bob", "carl", "dora", "emil"]
    if table == "unique":
        store.write(*(User("Free", str(i), name) for i, name in enumerate(names, start=1)))
    else:
        rows = (f"('{name}', '{i}', 'Free', NULL)" for i, name in enumerate(names, start=1))
        store.create_loose(", ".join(rows))
    wanted = {"fay": "1", "alice": "2", "bob": "3", "dora": "5", "emil": "4", "gina": "6"}
    users = (User("Pro", card, name) for name, card in wanted.items())
    done = store.load(*users, options=(*MODES[1], *ANY_LIST))
    assert numbers(done) == (1, 2, 0, 3)
    exported = [line.split(",")[:3] for line in store.export().splitlines()]
    assert [",".join(each) for each in exported] == [
        *("alice,1,Free", "bob,2,Free", "carl,3,Free"),
        *("dora,5,Pro", "emil,4,Pro", "gina,6,Pro"),
    ]
    file = store.folder / "list.csv"
    reason = "the card number is that of a stored user who is not in the file, or is rejected"
    rejected = Path(f"{file}.rejected").read_text().splitlines()
    assert rejected == [f"{file}:{line}: {reason}" for line in (2, 3, 4)]


def test_duplicate_on_the_line_of_the_first_user_is_rejected_alone(store: Store) -> None:
    """A line of YAML may have several users."""
    first, same_name, same_card = (
        f"{{nickname: {name}, card_number: '{card}', plan: Free}}"
        for name, card in [("alice", 1), ("alice", 2), ("carl", 1)]
    )
    file = store.folder / "list.yaml"
    file.write_text(f"users: [{first}, {same_name}, {same_card}]\n")
    done = store.run("import", *ANY_LIST, file, "--to", "people", "--json")
    assert numbers(done) == (1, 0, 0, 2)
    assert store.export().startswith("alice,1,Free")
    assert len(Path(f"{file}.rejected").read_text().splitlines()) == 2
