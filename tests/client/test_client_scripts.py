"""No script of faults makes a client take a user for missing."""

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

AT_ONCE = 30
WHOLE = [
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
THEN: list[Then] = ["keep", "keep", "keep", "close", "reset", "drip"]


def answer(random: Random) -> Said:
    whole = random.choice(WHOLE)
    at = random.randint(0, len(whole))
    answers = [
        whole,
        whole,
        whole[:at],
        whole[:at] + random.randbytes(1) + whole[at + random.randint(0, 1) :],
        whole.replace(b"X-Request-ID: ", b"X-Request-ID: other-"),
        b"HTTP/1.1 100 Continue\r\n\r\n" * random.randint(1, 200) + whole,
    ]
    return Said(random.choice(answers), random.choice(THEN))


def may_be_none(answers: Sequence[Said]) -> bool:
    """Return whether some answer has the record "not found" whole, for the request sent."""
    for sent, _ in answers:
        _, start, rest = sent.decode("latin-1").partition('{"status"')
        try:
            record, _ = json.JSONDecoder().raw_decode(start + rest)
        except ValueError:
            continue
        is_gone = (record.get("status"), record.get("code")) == ("error", "not_found")
        if is_gone and b"404" in sent and REQUEST_ID in sent:
            return True
    return False


@pytest.mark.parametrize("kind", KINDS)
async def test_no_fault_is_taken_for_not_found(kind: Kind) -> None:
    random = Random(7)
    results: Counter[str] = Counter()
    wrong: list[list[Said]] = []
    limit = asyncio.Semaphore(AT_ONCE)

    async def run(answers: list[Said]) -> None:
        async with (
            limit,
            serving(*answers) as server,
            calling(kind, server.address, deadline=0.3) as call,
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
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(AT_ONCE))
    async with asyncio.TaskGroup() as group:
        for _ in range(150):
            group.create_task(run([answer(random) for _ in range(random.randint(1, 3))]))
    assert not wrong
    assert {"None", "found", "Unexpected", "Undetermined"} <= set(results)
