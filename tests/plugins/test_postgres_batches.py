"""Lookups in PostgreSQL that start together: they share a query, and nothing else."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from idv_postgres import database as database_module
from idv_postgres.backend import PostgresBackend
from idv_postgres.batches import Batches, BatchFailed
from idv_postgres.lookups import Result
from support.databases.postgres_backends import serving
from support.databases.postgres_server import ALICE, BOB, Database
from support.fakes.outcomes import outcome
from support.http.http_server import until
from tornado_idv import Broken, ByCard, ByNickname, Unavailable, User

pytestmark = pytest.mark.slow

DAVE = User("Free", "0400", "dave")
NEVER = "90s"
"""A batch gets a third of it: even a busy machine needs less between two looks at the server."""


@contextmanager
def locked(database: Database) -> Iterator[None]:
    database.run("BEGIN; LOCK TABLE users")
    try:
        yield
    finally:
        database.run("ROLLBACK")


def start(backend: PostgresBackend, *names: str) -> list[asyncio.Task[User | None]]:
    return [asyncio.create_task(backend.find(ByNickname(name))) for name in names]


BATCH = "wait_event_type = 'Lock' AND query LIKE '%unnest%'"


async def until_waiting(database: Database, *, alone: int, batches: int) -> None:
    await until(lambda: database.count_queries(BATCH) == batches)
    await until(lambda: database.count_queries("wait_event_type = 'Lock'") == alone + batches)


@pytest.mark.parametrize(
    ("prepared", "columns"),
    [
        ("true", "nickname text, card_number text"),
        ("false", "nickname citext, card_number char(20)"),
    ],
)
async def test_each_of_the_lookups_in_a_batch_gets_its_own_result(
    database: Database, prepared: str, columns: str
) -> None:
    """A bad row, or a second one, is the error of its own lookup."""
    database.clear(
        f"CREATE TABLE users ({columns}, plan text, profile_url text);"
        "CREATE INDEX ON users (nickname); CREATE INDEX ON users (card_number);"
        "INSERT INTO users VALUES ('dave', '0400', 'Free'), ('alice', '4000123412341234', 'Free'),"
        "  ('Bob', '1', 'Pro'), ('carol', '77', NULL), ('erin', '2', 'Free'), ('erin', '3', 'Pro'),"
        "  ('@gina', '2', 'Pro'), ('hugo', NULL, 'Pro'), (NULL, '8', 'Pro'), (NULL, '8', 'Pro');"
        "INSERT INTO users VALUES ('ivo', '5', 'Pro', ''),"
        "  ('bob', '0012345670', 'Pro', 'https://elsewhere.example/bob')"
    )
    names = ["dave", "alice", "bob", "carol", "erin", "frank", "hugo", "ivo"]
    cards = [DAVE.card_number, ALICE.card_number, BOB.card_number, "77", "2", "40", "8"]
    queries = [*map(ByNickname, names), *map(ByCard, cards)]
    options = {"prepared_statements": prepared, "pool": {"max": "4"}}
    async with serving(database, timeout=NEVER, **options) as backend:
        with locked(database):
            lookups = asyncio.gather(*map(backend.find, queries), return_exceptions=True)
            await until_waiting(database, alone=2, batches=2)
        found = await lookups
    null, twice = "the plan of a row is NULL, or empty", "two rows answer one query"
    ends = [each.reason if isinstance(each, Broken) else each for each in found]
    no_card, no_url = null.replace("plan", "card number"), "the profile URL of a row is empty"
    assert ends[:8] == [DAVE, ALICE, BOB, null, twice, None, no_card, no_url]
    assert ends[8:] == [DAVE, ALICE, BOB, null, twice, None, twice]


async def test_values_that_fail_the_query_fail_their_own_lookups_alone(database: Database) -> None:
    database.clear(
        "CREATE TABLE people (nickname text PRIMARY KEY, card_number text UNIQUE);"
        "INSERT INTO people VALUES ('alice', '22012'), ('bob', '2'), ('carol', '40001');"
        "CREATE OR REPLACE FUNCTION fail(text) RETURNS text STABLE LANGUAGE plpgsql AS "
        "  $$ BEGIN RAISE 'no' USING ERRCODE = $1; END $$;"
        "CREATE VIEW users AS SELECT *, CASE card_number WHEN '2' THEN 'Free' "
        "  ELSE fail(card_number) END AS plan FROM people"
    )
    names = ["bob", "bob", "frank", "alice", "carol"]
    async with serving(database) as backend:
        ended = await asyncio.gather(*(outcome(backend, ByNickname(each)) for each in names))
    *others, alice, carol = ended
    assert others == ["found", "found", "not found"]
    assert alice.startswith("broken: the query failed with DivisionByZeroError")
    assert carol.startswith("unavailable: the query was stopped by a conflict with recovery")


@pytest.mark.parametrize("prepared", ["true", "false"])
async def test_a_slow_row_fails_its_own_lookup_alone(
    database: Database, prepared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are repeated within the timeout, and count as no failure.

    The server stops the shared query because it was asked to, and not by its own time limit.
    """
    # On a busy machine: 200 ms and 600 ms, and time enough for the others.
    monkeypatch.setattr(database_module, "_BATCH_SHARE", 1 / 15)
    monkeypatch.setattr(database_module, "_SERVER_SHARE", 0.2)
    database.clear(
        "CREATE TABLE people (nickname text PRIMARY KEY, card_number text UNIQUE);"
        "INSERT INTO people SELECT 'u' || i, i FROM generate_series(1, 32) AS i;"
        "CREATE OR REPLACE FUNCTION slow(text) RETURNS text STABLE LANGUAGE plpgsql AS "
        "  $$ BEGIN IF $1 = 'u7' THEN PERFORM pg_sleep(3); END IF; RETURN 'Free'; END $$;"
        "CREATE VIEW users AS SELECT *, slow(nickname) AS plan FROM people"
    )
    async with serving(database, timeout="3s", prepared_statements=prepared) as backend:
        queries = [ByNickname(f"u{number}") for number in range(1, 33)]
        logged = len(database.server.log)
        ended = await asyncio.gather(*(outcome(backend, query) for query in queries))
        await until(lambda: "due to user request" in database.server.log[logged:])
    assert ended.pop(6).startswith("unavailable: the query took too long and was stopped")
    assert ended == ["found"] * 31


Values = str | list[str]


class Queries:
    """Records the values of each query, and responds once ``going_on`` is set."""

    def __init__(self, respond: Callable[[Values], list[Any]], limit: int = 8) -> None:
        self.values: list[Values] = []
        self.going_on = asyncio.Event()
        self.going_on.set()
        self.batches = Batches(self._fetch, "one", "several", limit)
        self._respond = respond

    async def _fetch(self, _: str, values: Values) -> Result:
        self.values.append(values)
        await asyncio.sleep(0)
        await self.going_on.wait()
        return Result(self._respond(values))

    @property
    def sizes(self) -> list[int]:
        return [1 if isinstance(each, str) else len(each) for each in self.values]


def row_of_each(values: Values) -> list[Any]:
    return [] if isinstance(values, str) else [[i, each] for i, each in enumerate(values, 1)]


async def test_each_lookup_of_a_batch_that_failed_has_an_error_of_its_own() -> None:
    """A guard adds to each, and no exception is left behind."""
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, each: unhandled.append(each))

    def respond(values: Values) -> list[Any]:
        if isinstance(values, list):
            raise Unavailable("the connection was lost", counts_against_breaker=False)
        return []

    queries = Queries(respond)
    lookups = [asyncio.create_task(queries.batches.fetch(each)) for each in "abcde"]
    asyncio.get_running_loop().call_soon(lookups.pop().cancel)
    alone, *failures = await asyncio.gather(*lookups, return_exceptions=True)
    assert alone == Result([])
    assert [str(each) for each in failures] == ["the connection was lost"] * 3
    assert not any(each.counts_against_breaker for each in failures)
    assert len(set(map(id, failures))) == 3
    gc.collect()
    assert unhandled == []


async def test_a_cancelled_lookup_leaves_the_others_of_its_batch_alone(database: Database) -> None:
    """Once all are cancelled, their connection is closed, as that of a single lookup is."""
    database.write(ALICE, BOB)
    async with serving(database, timeout=NEVER, pool={"min": "2", "max": "2"}) as backend:
        sessions = set(database.connections())
        with locked(database):
            first, cancelled, other = start(backend, "alice", "alice", "bob")
            await until_waiting(database, alone=1, batches=1)
            cancelled.cancel()
            await asyncio.wait([cancelled])
        assert await asyncio.gather(first, other) == [ALICE, BOB]
        assert set(database.connections()) >= sessions
        with locked(database):
            first, *others = start(backend, "alice", "alice", "bob")
            await until_waiting(database, alone=1, batches=1)
            batch = database.server.run(f"SELECT pid FROM pg_stat_activity WHERE {BATCH}")
            for each in others:
                each.cancel()
            await asyncio.wait(others)
        assert await first == ALICE
        await until(lambda: int(batch) not in database.connections())
        assert await asyncio.gather(*start(backend, "alice", "bob")) == [ALICE, BOB]


@pytest.mark.parametrize(
    ("pause", "sizes"),
    [(5.0, [1, 3, 1, 1, 1, 1, 1, 1, 1]), (0.0, [1, 3, 1, 1, 1, 1, 3, 1, 1, 1])],
    ids=["pause", "end of the pause"],
)
async def test_lookups_are_queries_of_their_own_for_a_while_after_a_batch_failed(
    monkeypatch: pytest.MonkeyPatch, pause: float, sizes: list[int]
) -> None:
    def respond(values: Values) -> list[Any]:
        if isinstance(values, list):
            raise BatchFailed
        return [[values]]

    monkeypatch.setattr(Batches, "pause", pause)
    queries = Queries(respond)
    for _ in range(2):
        found = await asyncio.gather(*map(queries.batches.fetch, "abcd"))
        assert found == [Result([[each]]) for each in "abcd"]
    assert queries.sizes == sizes


async def test_the_size_of_a_batch_is_limited() -> None:
    """So that one slow row does not delay all lookups."""
    queries = Queries(row_of_each)
    names = [str(number) for number in range(80)]
    first, *others = await asyncio.gather(*map(queries.batches.fetch, names))
    assert queries.sizes == [1, 32, 32, 15]
    assert (first.rows, [each.rows for each in others]) == ([], [[[each]] for each in names[1:]])


async def test_no_more_queries_run_at_once_than_the_limit() -> None:
    """Those beyond it would wait for a connection, one by one."""
    queries = Queries(row_of_each, 2)
    queries.going_on.clear()
    lookups = []
    for names in ("a", "bc", "d", "ef"):
        lookups += [asyncio.create_task(queries.batches.fetch(name)) for name in names]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    cancelled = asyncio.create_task(queries.batches.fetch("x"))
    await asyncio.sleep(0)
    cancelled.cancel()
    assert queries.values == ["a", ["b", "c"]]
    queries.going_on.set()
    found = [each.rows for each in await asyncio.gather(*lookups)]
    assert found == [[], [["b"]], [["c"]], [["d"]], [["e"]], [["f"]]]
    assert queries.values == ["a", ["b", "c"], ["d", "e", "f"]]


async def test_a_batch_whose_rows_cannot_be_read_finds_no_user_absent() -> None:
    """What is missing of its rows is looked up alone."""

    class Unreadable(list[Any]):
        def __getitem__(self, _: object) -> Any:
            raise MemoryError

    def respond(values: Values) -> list[Any]:
        return [[values]] if isinstance(values, str) else [[1, values[0]], Unreadable()]

    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, each: unhandled.append(each))
    found = await asyncio.gather(*map(Queries(respond).batches.fetch, "abcd"))
    assert found == [Result([[each]]) for each in "abcd"]
    gc.collect()
    assert [type(each["exception"]) for each in unhandled] == [MemoryError]


async def test_a_cancelled_lookup_does_not_end_another_batch_before_it_begins() -> None:
    """It would count as running for good."""
    queries = Queries(row_of_each, 3)
    queries.going_on.clear()
    lookups = [asyncio.create_task(queries.batches.fetch(each)) for each in "abc"]
    await until(lambda: len(queries.values) == 2)
    loop = asyncio.get_running_loop()
    # In one iteration: a lookup of the first batch is cancelled, the second batch is made, and all
    # of its lookups are cancelled.
    loop.call_soon(loop.call_soon, lookups[1].cancel)
    later = [asyncio.create_task(queries.batches.fetch(each)) for each in "de"]
    for each in later:
        loop.call_soon(loop.call_soon, each.cancel)
    await asyncio.wait([lookups[1], *later])
    queries.going_on.set()
    found = [each.rows for each in await asyncio.gather(lookups[0], lookups[2])]
    assert found == [[], [["c"]]]
    queries.values.clear()
    queries.going_on.clear()
    lookups = [asyncio.create_task(queries.batches.fetch("f"))]
    await asyncio.sleep(0)
    assert queries.values == ["f"]  # not delayed, as no other runs
    queries.going_on.set()
    await asyncio.gather(*lookups)
