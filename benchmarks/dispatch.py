"""Cost of a missed lookup in this process: the whole, and each part on top of the next inner one.

The lookups are in a fixture, one after the other. Without I/O, CPU time is the only cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from benchmarks import dataset
from benchmarks.directories import directory_of
from benchmarks.figures import Figure, Target, microseconds
from benchmarks.plan import Plan
from benchmarks.rounds import Side, Stopwatch, Timing, cpus, interleave, sequential
from tornado_idv import ByNickname, Query
from tornado_idv.interfaces.shared import Purge
from tornado_idv.log_format import json_lines
from tornado_idv.lookup.cache import AnswerCache
from tornado_idv.lookup.chain import Chain
from tornado_idv.lookup.directory import Directory
from tornado_idv.lookup.guard import Guard
from tornado_idv.metrics.counters import Counters
from tornado_idv.registry import plugin_manager
from tornado_idv.web.access_log import AccessLog, LoggedRequest, RequestLog, record_response
from tornado_idv.web.response import Result

_TARGET = Target("most", 30)
_NOTHING_KEPT = {"ttl": "0s", "negative_ttl": "0s", "stale_if_error": "0s"}
_RECORDS = 10_000
_CANARY = {"nickname": f"@{dataset.nickname(0)}", "card_number": dataset.card_number(0)}


async def missed_find(plan: Plan) -> list[Figure]:
    """`Directory.find` on a miss over a fixture, each of its parts, and the response's record."""
    async with AsyncExitStack() as stack:
        fixture = plan.folder / "dispatch.yaml"
        dataset.write_fixture(fixture, plan.keys)

        async def opened(**more: Any) -> tuple[Directory, Guard]:
            cache = more.pop("cache", {})
            options = {"kind": "yaml", "path": fixture.name, **more}
            config = fixture.with_suffix(".config.yaml")
            return await stack.enter_async_context(directory_of(options, config, cache=cache))

        directory, guard = await opened()
        uncached, _ = await opened(cache=_NOTHING_KEPT)
        _, watched = await opened(canary=_CANARY)
        sides = _sides(plan, directory, uncached, guard, watched) | _records()
        timings = await interleave(plan, "dispatches", sides)
    of = {name: cpus(each) for name, each in timings.items()}

    def added(name: str, inner: str) -> list[float]:
        return [more - less for more, less in zip(of[name], of[inner], strict=True)]

    return [
        microseconds("Directory.find, missed", of["find"]),
        microseconds("storing the answer", added("find", "uncached")),
        microseconds("single flight", added("uncached", "chain")),
        microseconds("the chain", added("chain", "guard")),
        microseconds("the guard", added("guard", "own")),
        microseconds("YAML Backend.find", of["own"]),
        microseconds("a confirmed canary, of a user who is not found", added("canary", "absent")),
        microseconds("metrics of the response", of["metrics"]),
        microseconds("its line in the access log", added("log", "metrics")),
        microseconds("dispatch on top of Backend.find", added("find", "own"), _TARGET),
    ]


def _sides(
    plan: Plan, directory: Directory, uncached: Directory, guard: Guard, watched: Guard
) -> dict[str, Side]:
    keys = dataset.queries(plan.keys, plan.keys)
    absent: list[Query] = [ByNickname(f"absent{number}") for number in range(len(keys))]
    chain = Chain(plugin_manager(), [guard], AnswerCache(uncached.cache.limits), lambda _: b"", 9)
    deadline = asyncio.get_running_loop().time() + 3600

    async def find() -> Timing:
        directory.cache.apply(Purge())
        return await sequential(directory.find, keys)

    def guarded(by: Guard, queries: Sequence[Query]) -> Side:
        return lambda: sequential(lambda query: by.find(query, deadline), queries)

    return {
        "find": find,
        "uncached": lambda: sequential(uncached.find, keys),
        "chain": lambda: sequential(chain.find, keys),
        "guard": guarded(guard, keys),
        "own": lambda: sequential(guard.backend.find, keys),
        "absent": guarded(guard, absent),
        "canary": guarded(watched, absent),
    }


def _records() -> dict[str, Side]:
    """Return what records a response: in counters, and in counters and access log."""
    counters, log = Counters(), AccessLog(lambda _: None, json_lines)
    request = LoggedRequest("0" * 32, None, "POST", "identify/url", "127.0.0.1", "measured")
    result = Result(200, b"", cache="miss", backend="measured")

    async def record(to: RequestLog | None) -> Timing:
        watch = Stopwatch(_RECORDS)
        for _ in range(_RECORDS):
            counters.count_backend_call("measured", "found", "found", 1e-4)
            record_response(counters, to, request, result, 1e-4)
        log.flush()
        return watch.timing()

    return {"metrics": partial(record, None), "log": partial(record, log)}
