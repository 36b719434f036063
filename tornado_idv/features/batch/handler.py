"""Lookups of many users in one request."""

import time
from asyncio import Future, get_running_loop, sleep, wait
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from tornado_idv.config.settings import Settings
from tornado_idv.errors import InvalidFormat, Unavailable
from tornado_idv.keys.api_key import ApiKey
from tornado_idv.limits import KeyLimits
from tornado_idv.model import Answer, Query
from tornado_idv.trace_context import RequestContext
from tornado_idv.web.app import API, Route
from tornado_idv.web.errors import ApiError, ApiException
from tornado_idv.web.fast_path.known_heads import KnownBody
from tornado_idv.web.handler import ApiHandler
from tornado_idv.web.json_body import check_media_types, parse_object, text_member
from tornado_idv.web.lookups import (
    IDENTIFY_CARD,
    IDENTIFY_URL,
    ApiContext,
    Operation,
    PendingLookup,
    find_cached,
    result_of,
    result_of_error,
    start_lookup,
)
from tornado_idv.web.response import Result

MAX_ITEMS = 100
DEGRADED_TIME = 600.0
"""Batch responses have ``"degraded": true`` for this many seconds after a backend has failed."""
_GROUP, _PAUSE = 16, 0.001
"""Every ``_GROUP`` lookups, a batch pauses ``_PAUSE`` seconds, so that single lookups can start.

Pauses do not overlap, so that several batches together start lookups no faster than one batch.
"""

_NO_SCOPE = Result(ApiError.SCOPE.status, ApiError.SCOPE.body)
_TOO_LATE = Unavailable("no answer within the request's time")


class BatchHandler(ApiHandler):
    """Looks 1 to 100 users up: ``{"items": [{"input": "@nickname"}, {"card_number": "digits"}]}``.

    Each result is the response body of a single lookup, in the order of the items. The status is
    200 even if some results could not be determined.
    """

    allowed = ("POST",)
    route = "identify/batch"

    async def post(self) -> None:
        key = self.accepted_key()
        try:
            check_media_types(self.request.headers)
            items = parse_items(self.body)
        except (ApiException, InvalidFormat) as error:
            limits = self.limits_within(key)
            if limits is not None and isinstance(error, InvalidFormat):
                limits.charge_miss()
            raise
        limits = self.limits_within(key, len(items))
        parsed = [self._parse(key, limits, *each) for each in items]
        self.respond(await self._look_up_all(parsed, limits))
        self.learn_head(replace(IDENTIFY_URL, route=self.route), _read_cached)

    def _parse(
        self, key: ApiKey, limits: KeyLimits | None, operation: Operation, record: dict[str, Any]
    ) -> Query | Result:
        """Return the query of an item, or the error for an invalid item or a missing scope."""
        if operation.scope not in key.scopes:
            return _NO_SCOPE
        try:
            return operation.parse(self.api.identifiers, text_member(record, operation.field))
        except InvalidFormat as error:
            if limits is not None:
                limits.charge_miss()
            return result_of_error(error)

    async def _look_up_all(
        self, parsed: Sequence[Query | Result], limits: KeyLimits | None
    ) -> Result:
        api = self.api
        results = [
            each if isinstance(each, Result) else find_cached(api, each, limits) or each
            for each in parsed
        ]
        queries = Counter(each for each in results if not isinstance(each, Result))
        found = await self._look_up(queries, limits) if queries else {}
        for query, result in found.items():
            if result.status == ApiError.RATE_LIMITED.status:
                return result  # concurrent requests have used up the limit of misses
            if limits is not None and result.status == ApiError.NOT_FOUND.status:
                for _ in range(queries[query] - 1):
                    limits.charge_miss()
        ended = [each if isinstance(each, Result) else found[each] for each in results]
        return _combine(api, ended)

    async def _look_up(
        self, queries: Iterable[Query], limits: KeyLimits | None
    ) -> dict[Query, Result]:
        """Look the queries up. One limit applies to the concurrent lookups of all batches."""
        api, slots = self.api, self.api.directory.batch_slots
        context = RequestContext(self.request_id, self.trace)
        loop = get_running_loop()
        deadline = loop.time() + api.directory.timeout
        lookups: dict[Query, PendingLookup] = {}
        results = dict.fromkeys(queries, result_of_error(_TOO_LATE))

        def finish(future: Future[Answer]) -> None:
            slots.release()
            if not future.cancelled():
                future.exception()  # otherwise asyncio logs an exception after the deadline

        # Items without a slot before the deadline keep the result `_TOO_LATE`.
        for query in results:
            if not slots.try_acquire() and not await slots.acquire(deadline):
                break
            lookups[query] = lookup = start_lookup(api, query, limits, context)
            lookup.future.add_done_callback(finish)
            if len(lookups) % _GROUP == 0:
                async with api.directory.batch_turn:
                    await sleep(_PAUSE)
        if lookups:
            await wait([each.future for each in lookups.values()], timeout=deadline - loop.time())
        done = {query: each for query, each in lookups.items() if each.future.done()}
        return results | {query: each.result() for query, each in done.items()}


def _read_cached(api: ApiContext, _: Operation, key: ApiKey, body: bytes) -> KnownBody | None:
    """Return the cached answers to a batch, or ``None`` if the answer to an item is not cached."""
    cached: list[tuple[Query, Answer]] = []
    for operation, record in parse_items(body):
        query = operation.parse(api.identifiers, text_member(record, operation.field))
        answer = api.directory.cache.peek(query) if operation.scope in key.scopes else None
        if answer is None:
            return None
        cached.append((query, answer))
    return KnownBody(cached, None, len(cached), _answer_cached)


def _answer_cached(
    api: ApiContext, cached: list[tuple[Query, Answer]], limits: KeyLimits | None, _: RequestContext
) -> Result:
    for each in cached:
        api.directory.get_cached(each[0])  # a hit counts only after the limit is charged
    return _combine(api, [result_of(answer, limits, "hit") for _, answer in cached])


def _combine(api: ApiContext, results: Sequence[Result]) -> Result:
    """Return the response of a batch with the results of its items. Count cache hits and misses."""
    counters, directory = api.counters, api.directory
    failed_after = time.time() - DEGRADED_TIME
    is_degraded = any(each.problem for each in directory.canaries) or any(
        counters.backends[each.name].last_error_at > failed_after for each in directory.guards
    )
    counters.cache_lookups.update(filter(None, map(attrgetter("cache"), results)))
    numbers = Counter(map(attrgetter("status"), results))
    found, missing, invalid = numbers[200], numbers[404], numbers[422]
    undetermined = len(results) - found - missing - invalid
    bodies = b",".join([each.body for each in results])
    degraded = b"true" if is_degraded else b"false"
    body = (
        b'{"status":"ok","results":[%b],"summary":{"found":%d,"not_found":%d,"invalid":%d'
        b',"undetermined":%d},"degraded":%b}'
    ) % (bodies, found, missing, invalid, undetermined, degraded)
    return Result(200, body)


def parse_items(body: bytes) -> list[tuple[Operation, dict[str, Any]]]:
    """Return items with their operations, such as `IDENTIFY_CARD`. Raises `InvalidFormat`."""
    record = parse_object(body)
    if "items" not in record:
        raise InvalidFormat("member_missing")
    items = record["items"]
    if not isinstance(items, list) or not 1 <= len(items) <= MAX_ITEMS:
        raise InvalidFormat("items_number")
    return [(_operation_of(each), each) for each in items]


def _operation_of(item: object) -> Operation:
    if isinstance(item, dict):
        by_input = IDENTIFY_URL.field in item
        if by_input != (IDENTIFY_CARD.field in item):
            return IDENTIFY_URL if by_input else IDENTIFY_CARD
    raise InvalidFormat("item_invalid")


def make_routes(_settings: Settings, _before: object) -> Iterator[Route]:
    """Yield the route of batches. Every service has it."""
    yield Route(f"{API}/{BatchHandler.route}", BatchHandler)
