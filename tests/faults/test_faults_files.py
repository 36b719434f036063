"""What callers see while the files behind the service are locked, damaged, cut or replaced."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from idv_sqlite.backend import SqliteBackend
from support.faults.client import (
    ALICE,
    AMY,
    CAROL,
    FORGETFUL,
    MATCH,
    REMEMBERING,
    Person,
    Witness,
    all_of,
    fixture,
    nobody,
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
from support.service import make_database, serving

pytestmark = pytest.mark.slow

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
    """A database that knows Alice, looked at often."""
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
    """A fault that a good file renamed over the bad one mends."""

    @contextmanager
    def fault(path: Path) -> Iterator[None]:
        damage(path)
        yield
        replace(path, RESTORED)

    return fault


class Row(NamedTuple):
    """What a forgetful service answers: who is known, who is not, who is in the next backend."""

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


@contextmanager
def services(backends: str, folder: Path, *people: Person) -> Iterator[tuple[Witness, Witness]]:
    """Witnesses of two services over the same files: a forgetful one and one that remembers."""
    with ExitStack() as stack:
        started = [
            stack.enter_context(serving(cache + backends, folder))
            for cache in (FORGETFUL, REMEMBERING)
        ]
        forgetful, remembering = (Witness(each.port, *people) for each in started)
        yield forgetful, remembering


@pytest.mark.parametrize("row", FAULTS.values(), ids=FAULTS.keys())
def test_a_bad_database_is_could_not_tell_or_the_old_answer(row: Row, database: Path) -> None:
    """Nobody is "not found" meanwhile; who is in another backend notices nothing."""
    people = (ALICE, AMY, CAROL)
    with services(SQLITE + OTHERS, database.parent, *people) as (forgetful, remembering):
        well = all_of(ALICE, ALICE.body) | {"@amy": 200} | {"@carol": 200} | nobody(404)
        for witness in (forgetful, remembering):
            witness.sees(well, steady=0)
            witness.knows(RESTORED)
        with row.fault(database):
            out = nobody(row.absent) | {"@carol": 200}
            forgetful.sees(out | all_of(ALICE, row.known) | {"@amy": row.next})
            remembering.sees(out | all_of(ALICE, ALICE.body) | {"@amy": 200})
        for witness in (forgetful, remembering):
            witness.sees(well | all_of(ALICE, RESTORED.body), steady=0)


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
    "deleted and made anew": delete_and_make,
    "written by SQLite": write_rows,
}


@pytest.mark.parametrize("write", REPLACEMENTS.values(), ids=REPLACEMENTS.keys())
def test_a_new_database_answers_though_answers_are_remembered(
    write: Callable[..., object], database: Path
) -> None:
    """Records change, users come and go within a look, whatever the times to live."""
    newcomer, bob = Person("anybody", "4000000000000000"), Person("abe", "41")
    replace(database, ALICE, bob)
    with serving(LONG_LIVED + SQLITE + OTHERS, database.parent) as service:
        witness = Witness(service.port, ALICE, bob, CAROL)
        witness.sees(all_of(ALICE, 200) | all_of(bob, 200) | nobody(404) | {"@carol": 200})
        witness.knows(RESTORED)
        witness.awaits(newcomer, bob)
        write(database, RESTORED, newcomer)
        now = all_of(RESTORED, RESTORED.body) | all_of(newcomer, 200) | all_of(bob, 404)
        witness.sees(now | {"@carol": 200})


def test_two_rows_for_one_card_are_nobody_s_card(database: Path) -> None:
    """Neither of the two is answered for it; by nickname each is found."""
    twin = Person("alan", ALICE.card)
    row = "INSERT INTO users VALUES ('{0.nickname}', '{0.card}', '{0.plan}')"
    execute(database, "DROP TABLE users", TABLE, row.format(ALICE))
    people = (ALICE, AMY, CAROL)
    with services(SQLITE + OTHERS, database.parent, *people) as witnesses:
        for witness in witnesses:
            witness.sees(all_of(ALICE, ALICE.body))
        execute(database, row.format(twin))
        for witness in witnesses:
            witness.knows(Person("alan", "-"))
            witness.sees({ALICE.card: 503, "@alice": ALICE.body, CAROL.card: 200})
        execute(database, "DELETE FROM users WHERE nickname = 'alan'")
        for witness in witnesses:
            witness.sees(all_of(ALICE, ALICE.body) | nobody(404))


def warnings(caplog: pytest.LogCaptureFixture) -> int:
    """How many bad states of fixtures were noticed."""
    return sum("keeping the old users" in each.getMessage() for each in caplog.records)


def test_a_fixture_cut_at_any_of_200_points_hides_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each cut is made in place, noticed and refused; nobody in the file is lost."""
    files, rounds = 20, 10
    crowd = [[Person(f"u{f}-{n}", f"{f}00{n}") for n in range(5)] for f in range(files)]
    backends = ""
    for f, people in enumerate(crowd):
        (tmp_path / str(f)).mkdir()
        (tmp_path / f"{f}/users.yaml").write_text(fixture(*people))
        backends += f"  - {{name: f{f}, kind: yaml, path: {f}/users.yaml}}\n"
    last = [people[-1] for people in crowd]
    with serving(FORGETFUL + backends, tmp_path) as service:
        witness = Witness(service.port, *last)
        for turn in range(rounds):
            for f, people in enumerate(crowd):
                whole = fixture(*people).encode()
                size = len(whole) * (turn * files + f) // (files * rounds)
                overwrite(tmp_path / f"{f}/users.yaml", whole[:size])
            while warnings(caplog) < files * (turn + 1):
                witness.sees({f"@{each.nickname}": each.body for each in last}, steady=0)
        for f, people in enumerate(crowd):
            people[-1].plan = "Restored"
            (tmp_path / f"{f}/users.yaml").write_text(fixture(*people))
        witness.knows(*last)
        witness.sees({f"@{each.nickname}": each.body for each in last} | nobody(404))


BAD_FIXTURES = {
    "invalid": "users: [{nickname: alice, card_number: ",
    "another shape": "- alice\n- bob\n",
    "not UTF-8": "users: []\n\udcff",
    "two with one card": fixture(ALICE, Person("alan", ALICE.card)),
    **BOMBS,
}


@pytest.mark.parametrize("content", BAD_FIXTURES.values(), ids=BAD_FIXTURES.keys())
def test_a_bad_fixture_changes_nothing(
    content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The old users are answered on, and quickly, bombs or not; a good file is seen again."""
    path = tmp_path / "users.yaml"
    path.write_text(fixture(ALICE, CAROL))
    with serving(LONG_LIVED + SPARE.format("users"), tmp_path) as service:
        witness = Witness(service.port, ALICE, CAROL)
        asked = all_of(ALICE, ALICE.body) | {"@carol": 200} | nobody(404)
        path.write_bytes(content.encode("utf-8", "surrogateescape"))
        while not warnings(caplog):
            witness.sees(asked, steady=0)
        witness.sees(asked)
        witness.knows(RESTORED)
        path.write_text(fixture(RESTORED, CAROL))
        witness.sees(asked | all_of(RESTORED, RESTORED.body))


def test_a_deleted_fixture_is_answered_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "users.yaml"
    path.write_text(fixture(ALICE))
    with serving(FORGETFUL + SPARE.format("users"), tmp_path) as service:
        witness = Witness(service.port, ALICE)
        path.unlink()
        while not warnings(caplog):
            witness.sees(all_of(ALICE, ALICE.body) | nobody(404), steady=0)
        path.write_text(fixture(RESTORED))
        witness.knows(RESTORED)
        witness.sees(all_of(RESTORED, RESTORED.body))


def test_a_fixture_replaced_each_100_ms_is_followed_under_load(tmp_path: Path) -> None:
    """No answer is older than the edits of two seconds, and none goes back in time."""
    path = tmp_path / "users.yaml"
    path.write_text(fixture(Person("alice", ALICE.card, "0")))
    written = [time.monotonic()]
    with serving(LONG_LIVED + SPARE.format("users"), tmp_path) as service:
        witness, newest = Witness(service.port, Person("alice", ALICE.card, "0")), 0
        while len(written) <= 15:
            if time.monotonic() > written[-1] + 0.1:
                person = Person("alice", ALICE.card, str(len(written)))
                witness.knows(person)
                path.with_name("new").write_text(fixture(person))
                path.with_name("new").replace(path)
                written.append(time.monotonic())
            begun = time.monotonic()
            seen = int(json.loads(witness.ask("@alice").body)["plan"])
            assert seen >= newest
            assert seen == len(written) - 1 or begun < written[seen + 1] + 2
            newest = seen
        assert newest > 0
        witness.sees(all_of(person, person.body))
