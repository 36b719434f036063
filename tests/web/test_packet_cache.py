"""The packet cache: what it stores, and which requests take the normal path."""

from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Callable
from typing import cast

import pytest

from tornado_idv import model
from tornado_idv.http.exchange import Exchange, Peer, ResponseSink
from tornado_idv.http.head import parse_head
from tornado_idv.keys.api_key import ApiKey
from tornado_idv.keys.ring import KeyRing
from tornado_idv.limits.key_limits import KeyLimiter
from tornado_idv.log_format import json_lines
from tornado_idv.lookup.cache import AnswerCache, CacheLimits
from tornado_idv.metrics.counters import Durations
from tornado_idv.model import Answer, ByNickname, Query, User
from tornado_idv.web import packet_cache
from tornado_idv.web.access_log import AccessLog
from tornado_idv.web.packet_cache import CacheableRequest, PacketCache

KEY = ApiKey("caller", b"d" * 32, not_before=500.0, expires=2000.0)
ALICE = ByNickname("alice")
FOUND = Answer(User(plan="Free", card_number="1", nickname="alice"), body=b'{"status":"ok"}')
ABSENT = Answer(None, body=b'{"status":"error"}')
BODY = b'{"input": "@alice"}'
LINE = b"POST /api/v1/identify/url HTTP/1.1\r\n"
PEER = Peer("192.0.2.7", "http")


class CachedAnswers:
    """A directory with these answers in its cache."""

    def __init__(self) -> None:
        self.cache = AnswerCache(CacheLimits())
        self.answers: dict[Query, Answer] = {ALICE: FOUND}

    def get_cached(self, query: Query, now: float) -> Answer | None:
        return self.answers.get(query)


class Harness:
    """A packet cache and what it uses."""

    def __init__(self) -> None:
        self.directory = CachedAnswers()
        self.now = 1000.0
        self.keys = [KEY]
        self.written: list[str] = []
        self.log = AccessLog(self.written.append, json_lines)
        self.build(self.log)

    def build(self, log: AccessLog | None) -> None:
        self.ring = KeyRing(self.keys, lambda: self.now)
        self.cache = PacketCache(self.directory, self.ring, log, KeyLimiter())  # type: ignore[arg-type]

    def store(
        self,
        segment: bytes,
        query: Query = ALICE,
        route: str = "identify/url",
        *,
        head: bytes = b"",
        key: ApiKey = KEY,
    ) -> None:
        """Complete a request on the normal path; its head may have been sent in another segment."""
        connection = self.cache.connect(PEER)
        connection.respond(segment)
        connection.store(self.exchange(segment, query, route, head=head, key=key))

    def exchange(
        self,
        segment: bytes,
        query: Query = ALICE,
        route: str = "identify/url",
        *,
        head: bytes = b"",
        key: ApiKey = KEY,
    ) -> Exchange:
        data = head or segment[: segment.find(b"\r\n\r\n") + 4]
        exchange = Exchange(cast(ResponseSink, None), parse_head(data, 1 << 20), PEER, segment)
        exchange.cacheable = CacheableRequest(route, key, query, repeated=True)
        return exchange

    def respond(self, segment: bytes) -> bytes | None:
        """The response on a new connection, ``None`` for the normal path."""
        return self.cache.connect(PEER).respond(segment)


@pytest.fixture
def harness(io_loop: object) -> Harness:
    return Harness()


def packet(*fields: bytes, body: bytes = BODY, line: bytes = LINE) -> bytes:
    lines = [b"Host: x", b"Content-Length: %d" % len(body), *fields, b"", b""]
    return line + b"\r\n".join(lines) + body


async def test_an_unknown_request_takes_the_normal_path(harness: Harness) -> None:
    assert harness.respond(packet()) is None


async def test_a_stored_request_is_answered_from_the_cache(harness: Harness) -> None:
    harness.store(packet())
    response, other = harness.respond(packet()), harness.respond(packet())
    assert response is not None
    assert other is not None
    assert response.startswith(b"HTTP/1.1 200 OK\r\n")
    assert response.endswith(b"\r\n\r\n" + FOUND.body)
    ids = re.findall(rb"X-Request-ID: (\S+)", response + other)
    assert len(set(ids)) == 2


async def test_not_found_is_answered_too(harness: Harness) -> None:
    harness.directory.answers[ALICE] = ABSENT
    harness.store(packet())
    response = harness.respond(packet())
    assert response is not None
    assert response.startswith(b"HTTP/1.1 404 Not Found\r\n")


async def test_a_response_is_in_the_access_log(harness: Harness) -> None:
    harness.store(packet())
    response = harness.respond(packet())
    harness.log.flush()
    fields = json.loads(harness.written[0])
    assert (fields["method"], fields["route"], fields["status"]) == ("POST", "identify/url", 200)
    assert (fields["key"], fields["client"]) == ("caller", "192.0.2.7")
    assert response is not None
    assert f"X-Request-ID: {fields['request_id']}\r\n".encode() in response


async def test_it_works_without_an_access_log(harness: Harness) -> None:
    harness.build(None)
    harness.store(packet())
    assert harness.respond(packet())


def expire(harness: Harness) -> None:
    harness.now = 2000.0


def set_the_clock_back(harness: Harness) -> None:
    """Though the key was valid at a time that the ring has seen."""
    harness.ring.notice_time()
    harness.now = 499.0


def revoke(harness: Harness) -> None:
    harness.ring._keys.clear()


def reissue(harness: Harness) -> None:
    harness.ring._keys[KEY.digest] = ApiKey("another", KEY.digest)


def purge(harness: Harness) -> None:
    harness.directory.answers.clear()


@pytest.mark.parametrize("change", [expire, set_the_clock_back, revoke, reissue, purge])
async def test_a_change_is_effective_at_the_next_request(
    harness: Harness, change: Callable[[Harness], None]
) -> None:
    harness.store(packet())
    change(harness)
    assert harness.respond(packet()) is None


async def test_a_changed_key_is_cached_again(harness: Harness) -> None:
    """As after it was disabled and enabled, on the same connection."""
    harness.store(packet())
    assert harness.respond(packet())
    key = ApiKey("caller", KEY.digest, owner="changed")
    harness.ring.replace({key.digest: key})
    assert harness.respond(packet()) is None
    harness.store(packet(), key=key)
    assert harness.respond(packet())


async def test_a_body_is_known_after_every_head_of_its_route(harness: Harness) -> None:
    harness.store(packet(b"X-A: 1"))
    harness.store(packet(b"X-A: 2", body=BODY.replace(b" ", b"\t")), ByNickname("other"))
    assert harness.respond(packet(b"X-A: 2"))
    cards = packet(line=LINE.replace(b"url", b"card"))
    harness.store(cards.replace(BODY, BODY[::-1]), route="identify/card")
    assert harness.respond(cards) is None


async def test_a_new_body_after_a_known_head_is_stored(harness: Harness) -> None:
    harness.store(packet())
    other = packet(body=BODY.replace(b"alice", b"Alice"))
    assert harness.respond(other) is None
    harness.store(other)
    assert harness.respond(other)


async def test_a_body_of_another_length_than_the_head_says_takes_the_normal_path(
    harness: Harness,
) -> None:
    """Though both were stored: its last byte belongs to the next request."""
    longer = BODY + b" "
    harness.store(packet())
    harness.store(packet(body=longer))
    assert harness.respond(packet(body=longer))
    assert harness.respond(packet() + b" ") is None


PLAIN = packet()
NORMAL_PATH = {
    "a large head": packet(b"X-A: " + b"y" * 1024),
    "a large body": packet(body=BODY.ljust(1025)),
    "no body": packet(body=b""),
    "more than one request": PLAIN + PLAIN,
    "less than one request": PLAIN[:-1],
    "another version": packet(line=LINE.replace(b"1.1", b"1.0")),
    "another method": packet(line=LINE.replace(b"POST", b"PUT")),
    "a connection option": packet(b"Connection: keep-alive"),
    "a content coding": packet(b"Content-Encoding: identity"),
    "an expectation": packet(b"Expect: 100-continue"),
    "a request id": packet(b"X-Request-ID: a"),
    "a repeated field": packet(b"X-A: 1", b"X-A: 1"),
    "chunks": PLAIN.replace(b"Content-Length: 19", b"Transfer-Encoding: chunked"),
}


@pytest.mark.parametrize("segment", NORMAL_PATH.values(), ids=NORMAL_PATH)
async def test_what_may_have_another_response_is_not_stored(
    harness: Harness, segment: bytes
) -> None:
    harness.store(segment)
    assert harness.cache._heads == {}
    assert harness.respond(segment) is None


async def test_an_incomplete_head_is_not_stored(harness: Harness) -> None:
    """Nor one that is exactly as long as the body it announces."""
    half = LINE + b"Host: x\r\nContent-Length: "
    half += b"%d\r\nX-A: y" % (len(half) + 7)
    for segment in (half, half + b"zzz"):
        harness.store(segment, head=half + b"\r\n\r\n")
        assert harness.cache._heads == {}
        assert harness.respond(segment) is None


async def test_only_what_a_handler_understood_is_stored(harness: Harness) -> None:
    segment = packet()
    exchange = Exchange(
        cast(ResponseSink, None), parse_head(segment[: -len(BODY)], 1024), PEER, segment
    )
    exchange.cacheable = "something else"
    harness.cache.connect(PEER).store(exchange)
    assert harness.respond(segment) is None


async def test_the_oldest_head_is_evicted(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packet_cache, "_MAX_HEADS", 2)
    packets = [packet(b"X-A: %d" % i, body=BODY + b" " * i) for i in range(3)]
    for each in packets:
        harness.store(each)
    harness.store(packets[2])
    assert [harness.respond(each) is not None for each in packets] == [False, True, True]


async def test_head_that_two_connections_store_is_one(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It evicts no other; of two heads on a connection each has its own meaning."""
    monkeypatch.setattr(packet_cache, "_MAX_HEADS", 2)
    first, second = packet(b"X-A: 1"), packet(b"X-A: 2")
    connections = [harness.cache.connect(PEER) for _ in range(2)]
    for segment in (first, second):
        assert [each.respond(segment) for each in connections] == [None, None]
    for segment in (first, second):
        for each in connections:
            each.store(harness.exchange(segment))
    assert harness.respond(first)
    assert harness.respond(second)


@pytest.mark.parametrize("seconds", [0.001, 0.3], ids=["fast", "slow"])
async def test_response_is_counted_with_its_time(harness: Harness, seconds: float) -> None:
    """As one of the normal path is."""
    harness.store(packet())
    times = iter([50.0, 50.0 + seconds])
    harness.cache.timer = lambda: next(times)
    assert harness.respond(packet())
    counted, expected = harness.cache.counters.packet_hits_of("identify/url", "ok"), Durations()
    expected.add(seconds)
    assert counted.buckets() == expected.buckets()
    assert counted.seconds == pytest.approx(seconds)


async def test_the_oldest_bodies_are_evicted(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packet_cache, "_MAX_QUERY_BYTES", 2000)
    small = [packet(body=BODY.ljust(20 + i)) for i in range(4)]
    for each in (*small, small[0], small[0]):
        harness.store(each)
    assert all(harness.respond(each) for each in small)
    large = packet(body=BODY.ljust(1000))
    harness.store(large)
    assert [harness.respond(each) is not None for each in small] == [False, False, True, True]
    assert harness.respond(large)


@pytest.mark.slow
@pytest.mark.parametrize("length", [30, 1024], ids=["short", "long"])
async def test_bodies_take_no_more_memory_than_their_bound(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    bound = 1 << 18
    monkeypatch.setattr(packet_cache, "_MAX_QUERY_BYTES", bound)
    template = packet(body=b'{"input": "@00000000"}'.ljust(length))
    harness.store(template)
    names = [f"{number:08}" for number in range(2 * bound // (256 + length))]
    tracemalloc.start()
    try:
        for name in names:
            harness.store(template.replace(b"00000000", name.encode()), ByNickname(name))
        snapshot = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    # Only what is allocated here: services of other tests may run in threads of this process.
    files = (__file__, packet_cache.__file__, model.__file__)
    ours = snapshot.filter_traces(
        [tracemalloc.Filter(inclusive=True, filename_pattern=file) for file in files]
    )
    held = sum(trace.size for trace in ours.traces)
    assert bound / 2 < held < bound * 1.1


@pytest.mark.parametrize("body", [BODY, b'{"input": "@other"}'], ids=["known", "another body"])
async def test_a_head_is_dropped_when_its_key_is_no_longer_valid(
    harness: Harness, body: bytes
) -> None:
    """Later requests take the time of any other rejected key, also on the same connection."""
    harness.store(packet())
    connection = harness.cache.connect(PEER)
    assert connection.respond(packet())
    harness.ring.replace({})
    assert connection.respond(packet(body=body)) is None
    assert not harness.cache._heads
    harness.ring.replace({KEY.digest: KEY})
    assert connection.respond(packet()) is None


async def test_no_key_is_stored(harness: Harness) -> None:
    harness.store(packet(b"Authorization: Bearer tweety"))
    (head,) = harness.cache._heads.values()
    held = [getattr(head, name) for name in head.__slots__]
    assert "tweety" not in repr([held, vars(harness.cache)])
