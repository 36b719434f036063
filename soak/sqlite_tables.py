"""Services over several forms of SQLite databases, and faults that leave the files valid."""

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from functools import partial
from pathlib import Path

from soak.checker import Checker
from soak.fault_catalogue import Scenario, injected, of_database
from soak.file_faults import execute
from soak.harness import CONFIG, TIMES, Builder, Site, reads
from soak.people import Person
from soak.reference import FileSource, Reference, SqliteSource

_INDEXED = """
    CREATE TABLE users (nickname TEXT, card_number TEXT, plan TEXT, profile_url TEXT);
    CREATE UNIQUE INDEX by_nickname ON users (nickname);
    CREATE UNIQUE INDEX by_card ON users (card_number);
"""
_PARTIAL = """
    DROP INDEX {name};
    CREATE UNIQUE INDEX {name} ON users ({column}) WHERE rowid > 20;
    PRAGMA writable_schema = ON;
    UPDATE sqlite_schema SET sql = replace(sql, ' WHERE rowid > 20', '') WHERE name = '{name}';
    PRAGMA writable_schema = RESET;
"""
_VIEW = """
    CREATE TABLE legacy (nickname TEXT, card_number INTEGER, plan TEXT, profile_url TEXT);
    CREATE TABLE members (nickname TEXT, card_number TEXT, plan TEXT, profile_url TEXT);
    CREATE VIEW users AS
        SELECT DISTINCT * FROM (SELECT * FROM legacy UNION ALL SELECT * FROM members)
        WHERE plan <> '';
"""


class WalSource(FileSource):
    """A database in WAL mode with indexes. Edits stay in the ``-wal`` file."""

    def make(self) -> None:
        self.replace("")

    def replace(self, statements: str) -> None:
        """Create a new database, run statements in it, and rename it over the old file."""
        new = self.path.with_suffix(".new")
        new.unlink(missing_ok=True)
        with closing(sqlite3.connect(new)) as connection:
            connection.executescript(f"{_INDEXED} PRAGMA journal_mode = WAL")
            _insert(connection, "users", *self.people.values())
            connection.executescript(statements)
        for suffix in ("-wal", "-shm"):
            self.beside(suffix).unlink(missing_ok=True)
        new.replace(self.path)

    def beside(self, suffix: str) -> Path:
        """Return the path of the ``-wal`` or the ``-shm`` file."""
        return self.path.with_name(self.path.name + suffix)

    def write(self) -> None:
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            connection.execute("DELETE FROM users")
            _insert(connection, "users", *self.people.values())


class ViewSource(FileSource):
    """A view of two tables. Card numbers are INTEGER in the first: its users are undetermined."""

    def make(self) -> None:
        new = self.path.with_suffix(".new")
        new.unlink(missing_ok=True)
        with closing(sqlite3.connect(new)) as connection:
            connection.executescript(_VIEW)
            self._insert(connection)
        new.replace(self.path)

    def write(self) -> None:
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute("DELETE FROM legacy")
            connection.execute("DELETE FROM members")
            self._insert(connection)

    def _insert(self, connection: sqlite3.Connection) -> None:
        people = [*self.people.values()]
        _insert(connection, "legacy", *people[1::5])
        _insert(connection, "members", *(each for i, each in enumerate(people) if i % 5 != 1))


def _insert(connection: sqlite3.Connection, table: str, *people: Person) -> None:
    rows = [each.row for each in people]
    connection.executemany(f"INSERT INTO {table} VALUES (?, ?, ?, ?)", rows)
    connection.commit()


def of_wal(source: WalSource) -> Iterator[Scenario]:
    """Yield the faults of a database in WAL mode: missing files, and rows missing in an index."""
    for suffixes in (("-wal",), ("-shm",), ("-wal", "-shm")):

        def remove(suffixes: tuple[str, ...] = suffixes) -> None:
            for _ in range(3):
                source.add()  # only in the -wal file
            for suffix in suffixes:
                source.beside(suffix).unlink(missing_ok=True)

        name = f"{' and '.join(suffixes)} removed"
        yield Scenario(name, source, injected(remove), blind=False)
    for name, column in (("by_nickname", "nickname"), ("by_card", "card_number")):
        lose = partial(source.replace, _PARTIAL.format(name=name, column=column))
        yield Scenario(f"rows missing in {name}", source, injected(lose), blind=False)


def of_view(source: ViewSource) -> Iterator[Scenario]:
    """Yield the faults of a view: changes of its columns' affinity, and a dropped table."""
    views = {
        "tables in another order": "SELECT * FROM members UNION ALL SELECT * FROM legacy",
        "numbers alone": "SELECT nickname, CAST(card_number AS INTEGER) AS card_number, plan, "
        "profile_url FROM (SELECT * FROM legacy UNION ALL SELECT * FROM members)",
        "grouped": "SELECT * FROM (SELECT * FROM legacy UNION SELECT * FROM members) "
        "GROUP BY nickname, card_number LIMIT 10000",
    }
    for name, select in views.items():
        change = partial(execute, source.path, "DROP VIEW users", f"CREATE VIEW users AS {select}")
        yield Scenario(name, source, injected(change), blind=False)
    dropped = injected(lambda: execute(source.path, "DROP TABLE members"))
    yield Scenario("table of the view dropped", source, dropped, blind=True)


@asynccontextmanager
async def running_sqlite_sites(folder: Path, max_seconds: float) -> AsyncIterator[list[Site]]:
    """Run services over a table, a file in WAL mode and a view, for at most ``max_seconds``."""
    async with AsyncExitStack() as stack:
        build = Builder(folder, max_seconds, stack)
        references = [Reference() for _ in range(3)]
        sources = [
            build.file(SqliteSource, "table/t.db", references[0]),
            build.file(WalSource, "wal/w.db", references[1]),
            build.file(ViewSource, "view/v.db", references[2]),
        ]
        table, wal, view = sources
        assert isinstance(wal, WalSource)
        assert isinstance(view, ViewSource)
        scenarios = [[*of_database(table)], [*of_wal(wal)], [*of_view(view)]]
        names = ["table", "wal", "view"]
        configs = {name: CONFIG + reads(each) for name, each in zip(names, sources, strict=True)}
        services = await build.serve(**configs)
        yield [
            Site(f"sqlite, {name}", [services[name].port], Checker(*checked), [source], faults)
            for name, checked, source, faults in zip(
                names, [(each, TIMES, "") for each in references], sources, scenarios, strict=True
            )
        ]
