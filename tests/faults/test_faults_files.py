"""Responses while the files of backends are locked, damaged, truncated or replaced."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from idv_sqlite.backend import SqliteBackend
from support.faults.client import (
    ABSENT,
    ALICE,
    AMY,
    CAROL,
    FORGETFUL,
    MATCH,
    REMEMBERING,
    WELL,
    CheckingClient,
    Person,
    absent,
    all_of,
    fixture,
    serving_both,
)
from support.faults.file_faults import (
    BOMBS,
    GARBAGE,
    Damage,
    cut,
    drop_table,
    empty,
    execute,
    garble,
    garble_and_delete,
    locked,
    overwrite,
    renamed_over,
)
from support.processes.service import make_database, serving

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_secret_is_logged")]

Fault = Callable[[Path], AbstractContextManager[None]]
TABLE = "CREATE TABLE users (nickname TEXT, card_number TEXT, plan TEXT)"
RESTORED = Person("alice", ALICE.card, "Restored")
SQLITE = (
    f"  - {{name: users, kind: sqlite, path: users.db, {MATCH},"
    " on_unavailable: continue, breaker: {failures: 1000}}\n"
)
SPARE = "  - {{name: {0}, kind: yaml, path: {0}.yaml}}\n"
OTHERS = SPARE.format("others")
LONG_LIVED = REMEMBERING.replace("ttl: 0s, negative_ttl: 0s", "ttl: 1h, negative_ttl: 1h")


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database with Alice, checked for changes often."""
    monkeypatch.setattr(SqliteBackend, "check_interval", 0.05)
    make_database(tmp_path / "users.db", ALICE.row)
    (tmp_path / "others.yaml").write_text(fixture(AMY, CAROL))
    return tmp_path / "users.db"


def replace(path: Path, *people: Person) -> None:
    """Renames a good database over whatever is there."""
    new = path.with_name("new.db")
    make_database(new, *(each.row for each in people))
    new.replace(path)


@contextmanager
def written_meanwhile(path: Path) -> Iterator[None]:
    with locked(path) as writer:
        writer.execute("UPDATE users SET plan = ?", (RESTORED.plan,))
        yield


@contextmanager
def table_dropped(path: Path) -> Iterator[None]:
    drop_table(path)
    yield
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(TABLE)
        connection.execute("INSERT INTO users VALUES (?, ?, ?)", RESTORED.row[:3])


def damaged(damage: Damage) -> Fault:
    """Return a fault that is repaired by renaming a good file over the bad one."""

    @contextmanager
    def fault(path: Path) -> Iterator[None]:
        damage(path)
        yield
        replace(path, RESTORED)

    return fault


class Row(NamedTuple):
    """Responses without a cache: for an existing user, an absent one, one of the next backend."""

    fault: Fault
    known: int = 503
    absent: int = 503
    next: int = 503


FAULTS = {
    "locked exclusively": Row(written_meanwhile, next=200),
    "truncated": Row(damaged(cut)),
    "zero-length": Row(damaged(empty), next=200),
    "garbage written over it": Row(damaged(garble)),
    "garbage renamed over it": Row(damaged(renamed_over(GARBAGE)), known=200),
    "emptiness renamed over it": Row(damaged(renamed_over(b"")), known=200, next=200),
    "table dropped": Row(table_dropped, next=200),
    "deleted": Row(damaged(Path.unlink), known=200, next=200),
    "damaged, then deleted": Row(damaged(garble_and_delete)),
}


@pytest.mark.parametrize("row", FAULTS.values(), ids=FAULTS.keys())
def test_bad_database_gives_503_or_the_stale_answer(row: Row, database: Path) -> None:
    """No user is "not found" meanwhile; users of other backends are not affected."""
    with serving_both(SQLITE, database.parent) as clients:
        clients.wait_until_well()
        for client in clients:
            client.expect_found(RESTORED)
        with row.fault(database):
            clients.wait_for_fault(row.next, row.known, row.absent)
        for client in clients:
            client.wait_for(WELL | all_of(ALICE, RESTORED.body), steady=0)


def copy_over(path: Path, *people: Person) -> None:
    make_database(path.with_name("copied.db"), *(each.row for each in people))
    overwrite(path, path.with_name("copied.db").read_bytes())


def delete_and_make(path: Path, *people: Person) -> None:
    path.unlink()
    replace(path, *people)


def write_rows(path: Path, *people: Person) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM users")
        rows = [each.row for each in people]
        connection.executemany("INSERT INTO users VALUES (?, ?, ?, ?)", rows)


REPLACEMENTS = {
    "renamed over the old one": replace,
    "copied over the old one": copy_over,
    "deleted and created again": delete_and_make,
    "written by SQLite": write_rows,
}


@pytest.mark.parametrize("write", REPLACEMENTS.values(), ids=REPLACEMENTS.keys())
def test_replaced_database_is_served_in_spite_of_cached_answers(
    write: Callable[..., object], database: Path
) -> None:
    """Changed, added and removed users are seen at the next check, whatever the TTLs."""
    newcomer, bob = Person("anybody", "4000000000000000"), Person("abe", "41")
    replace(database, ALICE, bob)
    with serving(LONG_LIVED + SQLITE + OTHERS, database.parent) as service:
        client = CheckingClient(service.port, ALICE, bob, CAROL)
        client.wait_for(all_of(ALICE, 200) | all_of(bob, 200) | absent(404) | {"@carol": 200})
        client.expect_found(RESTORED)
        client.allow_changes(newcomer, bob)
        write(database, RESTORED, newcomer)
        now = all_of(RESTORED, RESTORED.body) | all_of(newcomer, 200) | all_of(bob, 404)
        client.wait_for(now | {"@carol": 200})


def test_card_number_of_two_rows_gives_503(database: Path) -> None:
    """Neither user is returned for it; each is found by nickname."""
    twin = Person("alan", ALICE.card)
    row = "INSERT INTO users VALUES ('{0.nickname}', '{0.card}', '{0.plan}')"
    execute(database, "DROP TABLE users", TABLE, row.format(ALICE))
    with serving_both(SQLITE, database.parent) as clients:
        for client in clients:
            client.wait_for(all_of(ALICE, ALICE.body))
        execute(database, row.format(twin))
        for client in clients:
            client.expect_found(Person("alan", "-"))
            client.wait_for({ALICE.card: 503, "@alice": ALICE.body, CAROL.card: 200})
        execute(database, "DELETE FROM users WHERE nickname = 'alan'")
        for client in clients:
            client.wait_for(all_of(ALICE, ALICE.body) | absent(404))


def warnings(caplog: pytest.LogCaptureFixture) -> int:
    """Return how many rejected fixtures were logged."""
    return sum("keeping the old users" in each.getMessage() for each in caplog.records)


def test_fixture_truncated_in_or_after_any_line_hides_no_user(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each truncation in place is noticed and rejected; every user is still found."""
    lines = 2 + len("abcde")
    crowd = [[Person(f"f{f}{n}", f"{f:02}00{ord(n)}") for n in "abcde"] for f in range(2 * lines)]
    backends = ""
    for f, people in enumerate(crowd):
        (tmp_path / f"f{f}.yaml").write_text(fixture(*people))
        match = f'match: "@f{f}[a-e]|{"|".join(ABSENT)}", kind'
        backends += SPARE.format(f"f{f}").replace("kind", match)
    last = [people[-1] for people in crowd]
    wanted = {f"@{each.nickname}": each.body for each in last}
    with serving(FORGETFUL + backends, tmp_path) as service:
        client = CheckingClient(service.port, *last)
        for f, people in enumerate(crowd):
            text = fixture(*people)
            kept = text.splitlines(keepends=True)[: f // 2]
            half = len(text.splitlines()[f // 2]) // 2 if f % 2 else 0
            overwrite(tmp_path / f"f{f}.yaml", text[: len("".join(kept)) + half].encode())
        client.look_until(lambda: warnings(caplog) >= len(crowd), wanted)
        for f, people in enumerate(crowd):
            people[-1].plan = "Restored"
            (tmp_path / f"f{f}.yaml").write_text(fixture(*people))
        client.expect_found(*last)
        client.wait_for({f"@{each.nickname}": each.body for each in last} | absent(404))


BAD_FIXTURES = {
    "invalid": "users: [{nickname: alice, card_number: ",
    "another shape": "- alice\n- bob\n",
    "not UTF-8": "users: []\n\udcff",
    "two with one card": fixture(ALICE, Person("alan", ALICE.card)),
    "deleted": None,
    **BOMBS,
}


@pytest.mark.parametrize("content", BAD_FIXTURES.values(), ids=BAD_FIXTURES.keys())
def test_bad_fixture_is_ignored(
    content: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The old users are still served, without delay; a good file is loaded again."""
    path = tmp_path / "users.yaml"
    path.write_text(fixture(ALICE, CAROL))
    with serving(LONG_LIVED + SPARE.format("users"), tmp_path) as service:
        client = CheckingClient(service.port, ALICE, CAROL)
        wanted = all_of(ALICE, ALICE.body) | {"@carol": 200} | absent(404)
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content.encode("utf-8", "surrogateescape"))
        client.look_until(lambda: warnings(caplog) > 0, wanted)
        client.wait_for(wanted)
        client.expect_found(RESTORED)
        path.write_text(fixture(RESTORED, CAROL))
        client.wait_for(wanted | all_of(RESTORED, RESTORED.body))


def test_fixture_replaced_every_50_ms_is_followed_under_load(tmp_path: Path) -> None:
    """While the edits go on: none need to end for one to be seen, within two seconds."""
    path = tmp_path / "users.yaml"
    path.write_text(fixture(Person("alice", ALICE.card, "0")))
    written = [time.monotonic()]
    with serving(LONG_LIVED + SPARE.format("users"), tmp_path) as service:
        client, seen = CheckingClient(service.port, Person("alice", ALICE.card, "0")), [0]
        while len(seen) < 5:
            if time.monotonic() > written[-1] + 0.05:
                person = Person("alice", ALICE.card, str(len(written)))
                client.expect_found(person)
                path.with_name("new").write_text(fixture(person))
                path.with_name("new").replace(path)
                written.append(time.monotonic())
            time.sleep(0.01)
            begun = time.monotonic()
            newest = int(json.loads(client.ask("@alice").body)["plan"])
            assert newest >= seen[-1]
            assert newest == len(written) - 1 or begun < written[newest + 1] + 2
            if newest > seen[-1]:
                seen.append(newest)
        client.wait_for(all_of(person, person.body))
