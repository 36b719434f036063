"""When a user who is not there is "not found": by the key ``ready``, without a server."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from idv_redis.backend import RedisBackend
from idv_redis.cluster import ReadyKeys
from support.fakes.outcomes import outcome
from tornado_idv.kit.testing import make_backend

RUN, NEXT_RUN, ANOTHER = "a" * 40, "b" * 40, "c" * 40
NONE, PROMOTED = "0" * 40, "d" * 40
OLDER = "the key ready is older than the last restart or failover"
MISSING = "the key ready is missing"


def info(run: str = RUN, promoted_from: str = NONE, **changed: str) -> dict[str, str]:
    return {"run_id": run, "master_replid2": promoted_from, "evicted_keys": "0", **changed}


TERMS: dict[str, tuple[list[tuple[str, ...]], str | None]] = {
    "any text": ([("1",)], None),
    "run_id": ([(RUN,)], None),
    "run_id of another run, as in a snapshot": ([(ANOTHER,)], OLDER),
    "missing": ([("",)], MISSING),
    "any text, after a restart": ([("1",), ("1", NEXT_RUN)], OLDER),
    "run_id of before a restart": ([(RUN,), (RUN, NEXT_RUN)], OLDER),
    "run_id, after a restart": ([("1",), (NEXT_RUN, NEXT_RUN)], None),
    "any text, set again after a restart": ([("1",), ("", NEXT_RUN), ("1", NEXT_RUN)], None),
    "another run_id, set after a restart": ([("1",), ("", NEXT_RUN), (RUN, NEXT_RUN)], OLDER),
    "any text, after a promotion": ([("1",), ("1", RUN, PROMOTED)], OLDER),
    "run_id of before a promotion": ([(RUN,), (RUN, RUN, PROMOTED)], OLDER),
    "run_id, set again after a promotion": (
        [(RUN,), ("", RUN, PROMOTED), (RUN, RUN, PROMOTED)],
        None,
    ),
    "promotion before the start": ([("1", RUN, PROMOTED)], None),
    "promotion that is forgotten": ([("1", RUN, PROMOTED), ("1", RUN, NONE)], None),
}
"""Values of ``ready`` at the start and later, with the run of the server and its promotion."""


@pytest.mark.parametrize(("seen", "expected"), TERMS.values(), ids=TERMS)
def test_ready_is_valid_in_its_term(seen: list[tuple[str, ...]], expected: str | None) -> None:
    keys, at_start = ReadyKeys(), {"maxmemory_policy": "noeviction"}
    for value, *server in seen:
        problem = keys.problem("ready", value.encode(), info(*server, **at_start))
        at_start = {}
    assert (problem and problem.partition(",")[0]) == expected


def test_node_of_a_cluster_that_was_not_there_at_the_start_needs_its_run_id() -> None:
    """It may be a replica that was promoted; the tag of the key is not shown."""
    keys, key = ReadyKeys(), "ready:{@AAA}"
    assert keys.problem(key, b"1", info(maxmemory_policy="noeviction"), "h:1") is None
    problem = keys.problem(key, b"1", info(NEXT_RUN), "h:2")
    older = "node h:2: the key ready:{…} is older than the last restart, failover or slot move"
    assert (problem or "").startswith(older)
    assert keys.problem(key, NEXT_RUN.encode(), info(NEXT_RUN), "h:2") is None
    # A repeated check changes nothing, nor does the marker of another slot.
    assert keys.problem(key, b"1", info(NEXT_RUN, maxmemory_policy="noeviction"), "h:1")
    for each in (key, "ready:{@AAB}"):
        assert keys.problem(each, b"", info(NEXT_RUN), "h:2")
    assert keys.problem(key, b"1", info(NEXT_RUN), "h:2") is None


RECORD = {b"nickname": b"alice", b"card_number": b"1", b"plan": b"Free"}
REPLICA = "unavailable: the server is a replica and may lack users"
CONFIRMED: dict[str, tuple[str, list[Any], list[dict[bytes, bytes]], str]] = {
    "all are loaded": ("master", [b"1", {}, b"1"], [{}], "not found"),
    "replica": ("slave", [b"1", {}, b"1"], [{}], REPLICA),
    "ready was set after the read": (
        "master",
        [None, {}, b"1"],
        [{}],
        "unavailable: the key idv:ready is missing",
    ),
    "ready was lost after the read": (
        "master",
        [b"1", {}, None],
        [{}],
        "unavailable: the key idv:ready is missing",
    ),
    "user was added": ("master", [b"1", RECORD, b"1"], [{}, RECORD], "found"),
    "user was added and removed": (
        "master",
        [b"1", RECORD, b"1"],
        [{}, {}],
        "unavailable: the user was changed during the lookup",
    ),
}
"""Replies to ``GET ready``, a read and ``GET ready``, and to the lookups before and after these."""


@pytest.mark.parametrize(
    ("role", "replies", "records", "expected"), CONFIRMED.values(), ids=CONFIRMED
)
async def test_lookup_without_a_result_is_confirmed(
    role: str, replies: list[Any], records: list[dict[bytes, bytes]], expected: str
) -> None:
    server, steps = info(role=role, maxmemory_policy="noeviction"), list[Any]()

    class Scripted:
        async def execute(self, command: str, *_: str) -> Any:
            return {"INFO": server, "GET": b"1"}.get(command) or records[len(steps)]

        async def execute_all(self, *commands: tuple[str, ...]) -> list[Any]:
            assert commands[1] == ("HGETALL", "idv:user:alice")
            return [*replies, server, {}, {}]

    backend: Any = make_backend(RedisBackend, Path(), url="redis://h", prefix="idv:")
    backend._client = Scripted()  # noqa: SLF001 - a server that is scripted
    backend.find = partial(backend.find, steps=steps)  # each read of a user is a step
    assert ((await outcome(backend)).startswith(expected), len(steps)) == (True, len(records))
