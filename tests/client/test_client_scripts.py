"""No script of faults makes a client take a user for missing."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from support.http.clients import ECHO, KINDS, NOT_FOUND, UNAVAILABLE, Kind, calling, error, found
from support.http.scripted_server import REQUEST_ID, Said, Then, http, serving
from tornado_idv.client import ClientError

pytestmark = [
    pytest.mark.slow,
    # A connection that a client gave up before the server accepted it is closed by the collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

_NOT_FOUND_BODY = NOT_FOUND.partition(b"\r\n\r\n")[2]
_DEADLINE = 0.3
_AT_ONCE = 30
_THEN: tuple[Then, ...] = ("keep", "keep", "keep", "close", "reset", "drip")


def script(random: Random) -> list[Said]:
    """Return up to three answers, of which some are right and most are faulty."""
    return [_answer(random) for _ in range(random.randint(1, 3))]


def _answer(random: Random) -> Said:
    whole = random.choice(
        [
            NOT_FOUND,
            NOT_FOUND,
            found(),
            found(nickname="@bob"),
            UNAVAILABLE,
            UNAVAILABLE.replace(b"After: 1", b"After: 0"),
            error(429, "rate_limited", "Retry-After: 0"),
            error(404, "no_such_route"),
            error(401, "token_invalid_or_expired"),
            error(500, "internal"),
            http(404, b"<html>Not found</html>", ECHO, kind="text/html"),
            http(404, b'{"detail":"Not Found"}'),
            http(302, b"", "Location: /"),
            b"",
        ]
    )
    change = random.choice([_same, _same, _cut, _changed, _wrong_id, _interim])
    return Said(change(whole, random), random.choice(_THEN))


def _same(data: bytes, _random: Random) -> bytes:
    return data


def _cut(data: bytes, random: Random) -> bytes:
    return data[: random.randint(0, len(data))]


def _changed(data: bytes, random: Random) -> bytes:
    at = random.randint(0, len(data))
    return data[:at] + random.randbytes(1) + data[at + random.randint(0, 1) :]


def _wrong_id(data: bytes, _random: Random) -> bytes:
    return data.replace(b"X-Request-ID: ", b"X-Request-ID: other-")


def _interim(data: bytes, random: Random) -> bytes:
    return b"HTTP/1.1 100 Continue\r\n\r\n" * random.randint(1, 200) + data


def may_be_none(answers: Sequence[Said]) -> bool:
    """Return whether some answer has the record "not found" whole, for the request that was sent.

    A byte that is changed elsewhere in it, such as in the reason phrase, may leave it valid.
    """
    return any(
        b"404" in each.sent and REQUEST_ID in each.sent and _is_whole(each.sent) for each in answers
    )


def _is_whole(data: bytes) -> bool:
    start = data.find(b'{"status"')
    try:
        record = json.loads(data[start : start + len(_NOT_FOUND_BODY)])
    except ValueError:
        return False
    return (record.get("status"), record.get("code")) == ("error", "not_found")


@pytest.mark.parametrize("kind", KINDS)
async def test_no_fault_is_taken_for_not_found(kind: Kind) -> None:
    random = Random(7)
    results: Counter[str] = Counter()
    wrong: list[list[Said]] = []
    limit = asyncio.Semaphore(_AT_ONCE)

    async def run(answers: list[Said]) -> None:
        async with (
            limit,
            serving(*answers) as server,
            calling(kind, server.address, deadline=_DEADLINE) as call,
        ):
            try:
                user = await call("find", "@alice")
            except ClientError as error_:
                results[type(error_).__name__] += 1
                return
            results["found" if user else "None"] += 1
            if user is None and not may_be_none(answers):
                wrong.append(answers)

    # Calls do not wait for a thread: that is no time of theirs.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_AT_ONCE))
    async with asyncio.TaskGroup() as group:
        for _ in range(150):
            group.create_task(run(script(random)))
    assert not wrong
    assert {"None", "found", "Unexpected", "Undetermined"} <= set(results)
