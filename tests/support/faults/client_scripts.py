"""Random scripts of a faulty service for the clients, to be run by hand with many of them.

``PYTHONPATH=tests python -m support.faults.client_scripts --scripts 10000`` prints the results of
each client, wrong ``None`` and calls that took longer than the deadline and a grace period.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random

from support.http.clients import (
    ECHO,
    KINDS,
    NOT_FOUND,
    UNAVAILABLE,
    Caller,
    Kind,
    calling,
    error,
    found,
)
from support.http.scripted_server import REQUEST_ID, Said, Then, http, serving
from tornado_idv.client import ClientError

_NOT_FOUND_BODY = NOT_FOUND.partition(b"\r\n\r\n")[2]
_DEADLINE = 0.3
_AT_ONCE = 30
_THEN: tuple[Then, ...] = ("keep", "keep", "keep", "close", "reset", "drip")


@dataclass
class Results:
    """Results of one client; ``late`` are seconds beyond the deadline, the worst."""

    results: Counter[str] = field(default_factory=Counter)
    wrong: list[list[Said]] = field(default_factory=list)
    late: float = 0.0


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
    then = random.choice(["keep", "keep", "keep", "close", "reset", "drip"])
    return Said(
        random.choice([_same, _same, _cut, _changed, _wrong_id, _interim])(whole, random), then
    )  # type: ignore[arg-type]


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


async def run(kind: Kind, scripts: int, seed: int) -> Results:
    """Run so many scripts against a client, some at a time."""
    random, results = Random(seed), Results()
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(answers: list[Said]) -> None:
        async with (
            limit,
            serving(*answers) as server,
            calling(kind, server.address, deadline=_DEADLINE) as call,
        ):
            await _call(call, answers, results)

    # Calls do not wait for a thread: that is no time of theirs.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_AT_ONCE))
    async with asyncio.TaskGroup() as group:
        for _ in range(scripts):
            group.create_task(one(script(random)))
    return results


async def _call(call: Caller, answers: list[Said], results: Results) -> None:
    started = time.monotonic()
    try:
        user = await call("find", "@alice")
    except ClientError as error_:
        results.results[type(error_).__name__] += 1
    else:
        results.results["found" if user else "None"] += 1
        if user is None and not may_be_none(answers):
            results.wrong.append(answers)
    results.late = max(results.late, time.monotonic() - started - _DEADLINE)


def main() -> None:
    """Run the scripts for both clients; exit with 1 after a wrong ``None``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--scripts", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    is_wrong = False
    for kind in KINDS:
        results = asyncio.run(run(kind, options.scripts, options.seed))
        print(kind, dict(results.results), "wrong:", len(results.wrong), "late:", results.late)  # noqa: T201
        for answers in results.wrong[:5]:
            print(answers)  # noqa: T201
        is_wrong |= bool(results.wrong)
    sys.exit(is_wrong)


if __name__ == "__main__":
    main()
