"""The packet cache: what it remembers, and what it leaves to the long way."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from tornado_idv.keys.api_key import ApiKey
from tornado_idv.keys.ring import KeyRing
from tornado_idv.model import Answer, ByNickname, Query, User
from tornado_idv.server.head import read_head
from tornado_idv.web.access import AccessLog
from tornado_idv.web.packets import Meaning, PacketCache

KEY = ApiKey("caller", b"d" * 32, expires=2000.0)
ALICE = ByNickname("alice")
FOUND = Answer(User(plan="Free", card_number="1", nickname="alice"), body=b'{"status":"ok"}')
ABSENT = Answer(None, body=b'{"status":"error"}')
BODY = b'{"input": "@alice"}'
LINE = b"POST /api/v1/identify/url HTTP/1.1\r\n"


class Memory:
    """A directory that has these answers in memory."""

    def __init__(self) -> None:
        self.answers: dict[Query, Answer] = {ALICE: FOUND}

    def get_cached(self, query: Query) -> Answer | None:
        return self.answers.get(query)


class Ground:
    """A packet cache, and what it stands on."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.now = 1000.0
        self.keys = KeyRing([KEY], lambda: self.now)
        self.written: list[str] = []
        self.log = AccessLog(self.written.append, for_people=False)
        self.packets = PacketCache(self.memory, self.keys, self.log)  # type: ignore[arg-type]

    def learn(self, packet: bytes, query: Query = ALICE, route: str = "identify/url") -> None:
        """Teaches what a packet meant, whose head may be another's or cut short."""
        whole = packet[: packet.find(b"\r\n\r\n") + 4] or LINE + b"Host: x\r\n\r\n"
        head = read_head(whole, 1 << 20)
        self.packets.learn(
            packet, head.start_line, head.headers, Meaning(route, KEY, query, remembered=True)
        )

    def answer(self, packet: bytes) -> bytes | None:
        """The answer to a packet, ``None`` for the long way."""
        head = self.packets.head(packet)
        query = head and head.queries.get(packet[-head.length :])
        return self.packets.answer(query, head, "192.0.2.7") if head and query else None


@pytest.fixture
def ground(io_loop: object) -> Ground:
    return Ground()


def packet(*fields: bytes, body: bytes = BODY, line: bytes = LINE) -> bytes:
    lines = [b"Host: x", b"Content-Length: %d" % len(body), *fields, b"", b""]
    return line + b"\r\n".join(lines) + body


async def test_bytes_that_were_never_understood_take_the_long_way(ground: Ground) -> None:
    assert ground.answer(packet()) is None


async def test_bytes_that_were_understood_are_answered_from_memory(ground: Ground) -> None:
    ground.learn(packet())
    answer = ground.answer(packet())
    assert answer is not None
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\n" + FOUND.body)
    other = ground.answer(packet())
    assert other is not None
    ids = re.findall(rb"X-Request-ID: (\S+)", answer + other)
    assert len(set(ids)) == 2


async def test_not_found_is_answered_too(ground: Ground) -> None:
    ground.memory.answers[ALICE] = ABSENT
    ground.learn(packet())
    answer = ground.answer(packet())
    assert answer is not None
    assert answer.startswith(b"HTTP/1.1 404 Not Found\r\n")


async def test_an_answer_is_in_the_access_log(ground: Ground) -> None:
    ground.learn(packet())
    answer = ground.answer(packet())
    ground.log.flush()
    fields = json.loads(ground.written[0])
    assert (fields["method"], fields["route"], fields["status"]) == ("POST", "identify/url", 200)
    assert (fields["key"], fields["remote"]) == ("caller", "192.0.2.7")
    assert answer is not None
    assert f"X-Request-ID: {fields['request_id']}\r\n".encode() in answer


async def test_without_an_access_log_it_answers_as_well(ground: Ground) -> None:
    ground.packets = PacketCache(ground.memory, ground.keys, None)  # type: ignore[arg-type]
    ground.learn(packet())
    assert ground.answer(packet())
    ground.log.flush()
    assert ground.written == []


def expire(ground: Ground) -> None:
    ground.now = 2000.0


def revoke(ground: Ground) -> None:
    ground.keys._keys.clear()


def reissue(ground: Ground) -> None:
    ground.keys._keys[KEY.digest] = ApiKey("another", KEY.digest)


def purge(ground: Ground) -> None:
    ground.memory.answers.clear()


@pytest.mark.parametrize("change", [expire, revoke, reissue, purge])
async def test_what_has_changed_is_seen_at_the_next_request(
    ground: Ground, change: Callable[[Ground], None]
) -> None:
    ground.learn(packet())
    change(ground)
    assert ground.answer(packet()) is None


async def test_a_body_is_known_behind_every_head_of_its_route(ground: Ground) -> None:
    ground.learn(packet(b"X-A: 1"))
    other = packet(b"X-A: 2", body=BODY.replace(b" ", b"\t"))
    ground.learn(other, ByNickname("nobody"))
    assert ground.answer(packet(b"X-A: 2"))
    cards = packet(line=LINE.replace(b"url", b"card"))
    ground.learn(cards.replace(BODY, BODY[::-1]), route="identify/card")
    assert ground.answer(cards) is None


async def test_a_new_body_behind_a_known_head_is_learned(ground: Ground) -> None:
    ground.learn(packet())
    other = packet(body=BODY.replace(b"alice", b"Alice"))
    head = ground.packets.head(other)
    assert head is not None
    assert ground.answer(other) is None
    ground.packets.learn_body(other, head, ALICE)
    assert ground.answer(other)


async def test_whom_a_head_was_forwarded_for_is_kept_with_it(ground: Ground) -> None:
    for field, forwarded in (
        (b"X-Forwarded-For: 192.0.2.9, 10.0.0.1", "192.0.2.9, 10.0.0.1"),
        (b"X-A: 1", ""),
    ):
        ground.learn(packet(field))
        head = ground.packets.head(packet(field))
        assert head is not None
        assert head.forwarded == forwarded


PLAIN = packet()
LONG_WAY = {
    "a header too long": packet(b"X-A: " + b"y" * 1024),
    "a body too long": packet(body=BODY.ljust(1025)),
    "no body": packet(body=b""),
    "more than one request": PLAIN + PLAIN,
    "less than a request": PLAIN[:-1],
    "another version": packet(line=LINE.replace(b"1.1", b"1.0")),
    "another method": packet(line=LINE.replace(b"POST", b"PUT")),
    "a wish for the connection": packet(b"Connection: keep-alive"),
    "a coding": packet(b"Content-Encoding: identity"),
    "an expectation": packet(b"Expect: 100-continue"),
    "an id": packet(b"X-Request-ID: a"),
    "a header repeated": packet(b"X-A: 1", b"X-A: 1"),
    "chunks": PLAIN.replace(b"Content-Length: 19", b"Transfer-Encoding: chunked"),
}


@pytest.mark.parametrize("data", LONG_WAY.values(), ids=LONG_WAY)
async def test_what_could_be_answered_otherwise_is_not_remembered(
    ground: Ground, data: bytes
) -> None:
    ground.learn(data)
    assert ground.packets._heads == {}
    assert ground.packets.head(data) is None


async def test_half_a_head_means_nothing(ground: Ground) -> None:
    """Also if it is just as long as the body is said to be."""
    half = LINE + b"Host: x\r\nContent-Length: "
    half += b"%d\r\nX-A: y" % (len(half) + 7)
    head = read_head(half + b"\r\n\r\n", 1 << 20)
    for data in (half, half + b"zzz"):
        ground.packets.learn(
            data,
            head.start_line,
            head.headers,
            Meaning("identify/url", KEY, ALICE, remembered=True),
        )
        assert ground.packets._heads == {}
        assert ground.answer(data) is None


async def test_it_is_bounded_and_the_oldest_makes_room(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tornado_idv.web.packets._MOST_HEADS", 2)
    monkeypatch.setattr("tornado_idv.web.packets._MOST_BODIES", 2)
    packets = [packet(b"X-A: %d" % i, body=BODY + b" " * i) for i in range(3)]
    for each in packets:
        ground.learn(each)
    ground.learn(packets[2])
    assert [ground.answer(each) is not None for each in packets] == [False, True, True]


async def test_no_key_is_kept(ground: Ground) -> None:
    ground.learn(packet(b"Authorization: Bearer tweety"))
    (head,) = ground.packets._heads.values()
    held = [getattr(head, name) for name in head.__slots__]
    assert "tweety" not in repr([held, vars(ground.packets)])
