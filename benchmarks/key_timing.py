"""Test of the time of a 401, which must not depend on why the key is rejected.

    python -m benchmarks.key_timing

Requests with tokens of each kind are handled in random order, without a socket, and timed from the
parsed head to the bytes of the response. (What follows, such as the access log, no client sees. How
long a head takes to be parsed depends on its bytes alone, and tells a client what it sent.) This is
done with heads that the packet cache does not know, and with heads that it knows, whose tokens it
looks up first. No head without a well-formed token is known.
The times of each kind are compared with those of expired keys by Welch's t-test; |t| below 4.5 is
the usual criterion of tests for side channels. The slowest 5 % are left out: they are interruptions
by other processes, which would hide a difference.

All fields have the same length. Another length shows, with 8 characters by 0.4 µs (CPython 3.11):
other memory is used for it. That depends on the length alone, which a client knows.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import math
import random
import statistics
import sys
import time
from asyncio import Future
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import cast

from msgspec.structs import replace

from tornado_idv.config.settings import KeySettings
from tornado_idv.http.exchange import Exchange, Peer
from tornado_idv.http.head import parse_head
from tornado_idv.identifiers import Identifiers
from tornado_idv.keys.api_key import ApiKey, never_before
from tornado_idv.keys.ring import KeyRing
from tornado_idv.keys.token import digest, issue
from tornado_idv.lookup.directory import Directory
from tornado_idv.service.keys import api_key
from tornado_idv.web.app import make_api
from tornado_idv.web.lookups import IDENTIFY_URL, Services
from tornado_idv.web.packet_cache import Accepted, PacketCache

SAMPLES = 100_000
LIMIT = 4.5
REFERENCE = "expired"
_TOKENS = 100
_KEPT = 0.95
_PEER = Peer("192.0.2.7", "http")
_BODY = json.dumps({"input": "@alice"}).encode()

_CONFIGURED = KeySettings.model_validate(
    {"id": "key", "sha256": "0" * 64, "expires": "2026-01-01T00:00:00Z"}
)
"""A key of ``config.yaml`` that has expired."""

_KINDS: Mapping[str, Callable[[], ApiKey]] = {
    REFERENCE: lambda: ApiKey("key", b"", expires=time.time() - 1),
    "configured": lambda: api_key(_CONFIGURED),
    "not valid yet": lambda: ApiKey("key", b"", not_before=time.time() + 1e6),
    "revoked": lambda: ApiKey("key", b"", expires=never_before(), rejected="revoked"),
    "disabled": lambda: ApiKey("key", b"", expires=never_before(), rejected="disabled"),
}
"""Makes a key of each kind."""

_BEARER = "Authorization: Bearer "
_MALFORMED: Sequence[Callable[[str], str]] = (
    lambda token: f"Authorization: Digest {token}",
    lambda token: f"{_BEARER}?{token[1:]}",
    lambda token: f"{_BEARER}{token[:20]} {token[21:]}",
    lambda token: f"{_BEARER}={token[1:]}",
)
"""Makes a field that holds no token of the right form, out of one that is unknown."""

_WITHOUT_TOKEN = ("absent", "malformed")

Times = dict[str, list[int]]


def main() -> int:
    """Print the table; return 1 if a difference was found."""
    statistics: list[float] = []
    for known in (False, True):
        print(f"{'known' if known else 'unknown'} heads")
        statistics += compare(asyncio.run(measure(SAMPLES, known=known))).values()
    print(f"limit: |t| < {LIMIT}, compared with {REFERENCE}")
    return int(any(abs(t) >= LIMIT for t in statistics))


def compare(times: Times) -> dict[str, float]:
    """Print a line for each kind, and return its t statistic."""
    merged = sorted(each for samples in times.values() for each in samples)
    most = merged[int(len(merged) * _KEPT)]
    kept = {kind: [each for each in samples if each <= most] for kind, samples in times.items()}
    statistic = {kind: welch(samples, kept[REFERENCE]) for kind, samples in kept.items()}
    print(f"{'kind':16}{'samples':>9}{'mean ns':>10}{'median ns':>11}{'t':>8}")
    for kind, samples in kept.items():
        mean, median = statistics.fmean(samples), statistics.median(samples)
        line = f"{len(times[kind]):>9}{mean:>10.1f}{median:>11.0f}{statistic[kind]:>8.2f}"
        print(f"{kind:16}{line}")
    return statistic


async def measure(count: int, *, known: bool = False) -> Times:
    """Return ``count`` times of each kind, and more of some, in nanoseconds."""
    keys, fields = _keys_and_fields()
    handle = _handler(keys, known=known)
    if known:
        fields = {kind: each for kind, each in fields.items() if kind not in _WITHOUT_TOKEN}
    times: Times = {kind: [] for kind in fields}
    every = [(kind, field) for kind, each in fields.items() for field in each]
    random.shuffle(every)
    heads = [(kind, _head(field)) for kind, field in every]
    gc.disable()
    for i in range(count // _TOKENS + 1):
        random.shuffle(heads)
        for kind, head in heads:
            taken = await handle(head)
            if i:  # the first pass warms up
                times[kind].append(taken)
        if i % 10 == 0:
            gc.collect()
    gc.enable()
    return times


def _head(field: str) -> bytes:
    lines = [
        "POST /api/v1/identify/url HTTP/1.1",
        "Host: localhost",
        field,
        "Content-Type: application/json",
        f"Content-Length: {len(_BODY)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


class _Sink:
    """Takes responses, all of which must be 401."""

    def __init__(self) -> None:
        self.sent_at = 0
        self._sent: Future[None] = asyncio.get_running_loop().create_future()

    def send(self, data: bytes) -> Future[None]:
        self.sent_at = time.perf_counter_ns()
        assert data.startswith(b"HTTP/1.1 401 ")
        return self._sent

    def on_response_complete(self, *, keep_alive: bool) -> None:
        assert keep_alive


def _handler(keys: list[ApiKey], *, known: bool) -> Callable[[bytes], Awaitable[int]]:
    """Return what handles a request, and returns after how many nanoseconds it responds."""
    services = Services(cast(Directory, None), Identifiers(()), KeyRing(keys))
    api, sink = make_api(services), _Sink()
    packets = PacketCache(services)
    if known:
        _learn(packets, Exchange(sink, parse_head(_head(_BEARER + issue("key")), 1024), _PEER))
    fast_path = packets.connect(_PEER)

    async def handle(head: bytes) -> int:
        parsed, data = parse_head(head, 1024), head + _BODY
        started = time.perf_counter_ns()
        matched = fast_path.match(data)
        assert (matched is not None) is known
        if matched is not None:
            assert fast_path.respond(matched[1], _BODY, sink) is None
        Exchange(sink, parsed, _PEER).dispatch(api, _BODY)
        while sink.sent_at < started:  # noqa: ASYNC110 Tornado's handler is a task
            await asyncio.sleep(0)
        return sink.sent_at - started

    return handle


def _learn(packets: PacketCache, exchange: Exchange) -> None:
    exchange.cacheable = Accepted(IDENTIFY_URL, ApiKey("good", b""))
    for _ in range(2):  # a head is learned when it comes a second time
        packets.learn(exchange)


def welch(a: Sequence[int], b: Sequence[int]) -> float:
    """Return Welch's t statistic of two samples."""
    error = statistics.variance(a) / len(a) + statistics.variance(b) / len(b)
    return (statistics.fmean(a) - statistics.fmean(b)) / math.sqrt(error)


def _keys_and_fields() -> tuple[list[ApiKey], Mapping[str, list[str]]]:
    """Return keys, and as many header fields of each kind, none of which has a valid token."""
    # In random order, since the place of a key in memory makes up to 0.2 µs of difference.
    order = [*_KINDS] * _TOKENS
    random.shuffle(order)
    tokens: dict[str, list[str]] = {kind: [] for kind in _KINDS}
    keys = []
    for kind in order:
        token = issue("key")
        keys.append(replace(_KINDS[kind](), digest=digest(token)))
        tokens[kind].append(token)
    tokens["unknown"] = [issue("key") for _ in range(_TOKENS)]
    tokens["wrong CRC"] = [
        token[:-1] + ("0" if token[-1] != "0" else "1") for token in tokens[REFERENCE]
    ]
    fields = {kind: [_BEARER + token for token in each] for kind, each in tokens.items()}
    # Twice as many: where absent fields are rarer, the processor predicts the code of the others,
    # which makes up to 0.3 µs of difference.
    fields["absent"] = [f"X-Requested-W: Bearer {issue('key')}" for _ in range(2 * _TOKENS)]
    malformed = itertools.cycle(_MALFORMED)
    fields["malformed"] = [next(malformed)(issue("key")) for _ in range(_TOKENS)]
    return keys, fields


if __name__ == "__main__":
    sys.exit(main())
