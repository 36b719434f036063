"""The fast path does not change behaviour, whatever happens."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.http.in_process import (
    ALICE,
    MALFORMED_TOKENS,
    SHORT_LIVED_KEY,
    FakeClient,
    Harness,
    ask_for,
    harnesses,
    issued_keys,
)
from support.processes.service import CARDS_ONLY_KEY, EXPIRED_KEY, KEY
from tornado_idv import LookupFailed, Unavailable, hookimpl
from tornado_idv.interfaces.shared import Purge
from tornado_idv.keys.api_key import ApiKey
from tornado_idv.model import Answer, ByCard, ByNickname, Query, User

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("HYPOTHESIS_EXAMPLES", "100"))
PROXIES = ("127.0.0.1", "2001:db8::/32")
CLIENTS = ("127.0.0.1", "192.0.2.7", "2001:db8::1")
"""Where each calls from: the same bytes may come from a trusted proxy and from anyone."""
URL, CARD, BATCH = (b"/api/v1/identify/" + each for each in (b"url", b"card", b"batch"))
BEATE = User(plan="Pro", card_number="2", nickname="beate")
USERS = (ALICE, BEATE, User(plan="Pro", card_number=ALICE.card_number, nickname="alice"))
KEYS = (*(KEY, KEY, KEY, SHORT_LIVED_KEY, EXPIRED_KEY, CARDS_ONLY_KEY, "B" * 40), *MALFORMED_TOKENS)
BODIES = (
    b'{"input": "@alice"}',
    b'{"input": "@alice"}',
    b'{"input": "@beate"}',
    b'{"input":"@alice" }',
    b'{"input": "https://profiles.example/m/alice"}',
    b'{"input": "@nobody"}',
    b'{"input": "no one"}',
    b'{"card_number": "4000123412341234"}',
    b'{"card_number": "2"}',
    b'{"input": "@alice", "x": 1}',
    b'{"items": [{"input": "@alice"}, {"card_number": "2"}, {"input": "@alice"}]}',
    b'{"items": [{"input": "@nobody"}, {"input": "@beate"}]}',
    b'{"items": [{"input": "@nobody"}, {"input": "no one"}]}',
    b"[]",
    b"",
)
FIELDS = (
    b"Accept: application/json",
    b"accept: */*",
    b"X-Forwarded-For: 1.2.3.4",
    b"x-forwarded-for: 1.2.3.4,5.6.7.8:90, ::ffff:127.0.0.1",
    b"Accept: text/html",
    b"Content-Type: application/json",
    b"CONTENT-TYPE:application/json;charset=utf-8 ",
    b"Content-Type: text/plain",
    b"Content-Encoding: identity",
    b"X-Request-ID: abc",
    b"Cookie: a=b",
    b"Cookie: a=c",
    b"cookie:",
    b"X-Request-ID: {}",
    b"X-IDV-Request-ID: abc",
    b"x-idv-request-id: {}",
    b"Proxy-Connection: close",
    b"Te: trailers",
    b"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    b"Traceparent: 00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
    b"tracestate: a=b",
    b"Host: x",
    b"Connection: close, x",
    b"Authorization: bearer  " + KEY.encode() + b" ",
    b"Expect: 100-continue",
    b"Connection: close",
    b"Connection: keep-alive",
    b"Transfer-Encoding: chunked",
    b"Authorization: Bearer " + KEY.encode(),
    b"Content-Length: 19",
    b"Upgrade: websocket",
)

FAILURES = (Unavailable("down"), Unavailable("busy", retry_after=7.5))

Step = Callable[["Side"], object]


class Observer:
    """Hears of every lookup."""

    def __init__(self) -> None:
        self.heard: list[tuple[Query, User | str | None, bool]] = []

    @hookimpl
    def idv_lookup_finished(
        self,
        query: Query,
        outcome: Answer | LookupFailed,
        cached: bool,  # noqa: FBT001 - as the hook
    ) -> None:
        end = outcome.user if isinstance(outcome, Answer) else outcome.reason
        self.heard.append((query, end, cached))


class Side:
    """One of the two services, and those who call it."""

    def __init__(self, make: Callable[..., Harness], *, fast_path: bool) -> None:
        self.observer = Observer()
        self.harness = make(fast_path=fast_path, plugins=[self.observer], proxies=PROXIES)
        self.clients: list[FakeClient] = [self.harness.call(ip) for ip in CLIENTS]

    def client(self, number: int) -> FakeClient:
        """One who calls; a new one in place of one who was left."""
        if self.clients[number].socket.closed:
            self.clients[number].socket.vanish()
            self.clients[number] = self.harness.call(CLIENTS[number])
        return self.clients[number]

    @property
    def seen(self) -> tuple[object, ...]:
        """Everything that is visible from outside."""
        return (
            [(each.steady, each.socket.closed, each.socket.misuse) for each in self.clients],
            [*self.observer.heard],
            self.harness.access(),
            self.harness.users.asked,
            self.counted,
        )

    @property
    def counted(self) -> dict[str, object]:
        """What is counted, but for durations."""
        counters = self.harness.counters
        record = counters.to_record()
        record["responses"] = {key: each.count for key, each in counters.responses.items()}
        return record


@dataclass(frozen=True)
class Sent:
    """Pieces that one client sends; if ``late``, also a client that has had its last response."""

    number: int
    pieces: Sequence[bytes]
    late: bool = False

    def __call__(self, side: Side) -> None:
        client = side.clients[self.number] if self.late else side.client(self.number)
        client.send(*filter(None, self.pieces))


def cut(number: int, data: bytes, places: list[int]) -> list[Sent]:
    ends = [0, *sorted({place % len(data) for place in places}), len(data)]
    return [Sent(number, [data[begin:end] for begin, end in pairwise(ends)])]


def halves(number: int, data: bytes, place: int) -> tuple[Sent, Sent]:
    """The beginning and the end of a request; one may come without the other, or much later."""
    place = place % (len(data) - 1) + 1
    return Sent(number, [data[:place]]), Sent(number, [data[place:]], late=True)


def damaged(number: int, data: bytes, place: int, byte: int) -> list[Sent]:
    """A request with another byte at one place of its head."""
    place %= data.index(b"\r\n\r\n") + 4
    return [Sent(number, [data[:place] + bytes([byte]) + data[place + 1 :]])]


@dataclass(frozen=True)
class Done:
    """Something that happens to the service."""

    name: str
    do: Callable[[Harness], object]

    def __call__(self, side: Side) -> None:
        self.do(side.harness)


@st.composite
def request(draw: st.DrawFn) -> bytes:
    """A request, mostly a plain one that is likely to come again."""
    body = draw(st.sampled_from(BODIES))
    path = BATCH if b"items" in body else CARD if b"card" in body else URL
    plain = draw(st.integers(0, 3)) > 0
    length = len(body) if plain else max(0, len(body) + draw(st.integers(-1, 1)))
    fields = [
        b"Host: x",
        b"Authorization: Bearer " + draw(st.sampled_from(KEYS)).encode(),
        b"Content-Length: %d" % length,
        *draw(st.lists(st.sampled_from(FIELDS[:4] if plain else FIELDS), max_size=2)),
    ]
    fields = draw(st.permutations(fields))
    if draw(st.booleans()):
        fields = [each.lower() if b"Bearer" not in each else each for each in fields]
    method = b"POST" if plain else draw(st.sampled_from([b"POST", b"GET", b"HEAD"]))
    version = b"1.1" if plain else draw(st.sampled_from([b"1.1", b"1.1", b"1.0"]))
    return b"\r\n".join([method + b" " + path + b" HTTP/" + version, *fields, b"", body])


def happenings() -> st.SearchStrategy[Done]:
    """Purges, data that changes, a backend that fails and comes back, keys that are revoked."""

    def all_keys() -> dict[bytes, ApiKey]:
        return {key.digest: key for key in issued_keys()}

    def without_ours() -> dict[bytes, ApiKey]:
        return {digest: key for digest, key in all_keys().items() if key.id != "caller"}

    ring = (all_keys, without_ours)
    return st.one_of(
        st.sampled_from(USERS).map(lambda user: Done("put", lambda g: g.users.put(user))),
        st.sampled_from(USERS).map(lambda user: Done("drop", lambda g: g.users.drop(user))),
        st.just(Done("purge", lambda g: g.cache.apply(Purge()))),
        st.sampled_from([ByNickname("alice"), ByCard("2")]).map(
            lambda query: Done("purge a user", lambda g: g.cache.apply(Purge(queries=(query,))))
        ),
        st.booleans().map(lambda down: Done("down", lambda g: setattr(g.users, "down", down))),
        st.sampled_from(FAILURES).map(
            lambda each: Done("failure", lambda g: setattr(g.users, "failure", each))
        ),
        st.sampled_from(ring).map(lambda keys: Done("keys", lambda g: g.keys.replace(keys()))),
    )


SECONDS = st.sampled_from([0.2, 1.0, 4.0, 5.1, 9.0, 30.0, 99.0, 101.0, 245.0, 301.0])


NUMBERS = st.integers(0, len(CLIENTS) - 1)


@st.composite
def interrupted(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> list[Step | float]:
    """A client that is known, and pauses in the middle of a request."""
    number, data = draw(NUMBERS), draw(whole)
    place = draw(st.sampled_from([len(data) - 20, len(data) - 3, len(data) // 2, 5]))
    pause = draw(st.sampled_from([0.2, 4.0, 5.1, 5.6, 10.2]))
    begin, rest = halves(number, data, place)
    later = [rest, 0.2, rest, 4.9, 0.2] if draw(st.booleans()) else [rest]
    return [*[Sent(number, [data])] * 3, begin, pause, *later]


@st.composite
def histories(draw: st.DrawFn) -> list[Step | float]:
    """A few requests that come again and again, whole or in pieces, and what happens between."""
    whole = st.sampled_from(draw(st.lists(request(), min_size=1, max_size=4)))
    by_all = whole.map(lambda data: [Sent(number, [data]) for number in range(len(CLIENTS))])
    several = st.lists(whole, min_size=1, max_size=3).map(b"".join)
    places = st.one_of(st.integers(0, 400), st.sampled_from([-3, -10, -19]))
    byte = st.one_of(st.integers(0, 255), st.sampled_from(b"\r\n\t\0 :,;\x7f\x80\xff"))
    steps = st.one_of(
        st.builds(cut, NUMBERS, whole, st.just([])),
        by_all,
        by_all,
        st.builds(cut, NUMBERS, several, st.lists(st.integers(1, 400), max_size=2)),
        st.builds(halves, NUMBERS, whole, places).flatmap(st.sampled_from).map(lambda half: [half]),
        st.builds(damaged, NUMBERS, whole, st.integers(0, 400), byte),
        st.one_of(happenings(), SECONDS).map(lambda each: [each]),
        interrupted(whole),
    )
    return list(chain.from_iterable(draw(st.lists(steps, min_size=5, max_size=30))))


@settings(max_examples=EXAMPLES)
@given(histories())
def test_fast_path_does_not_change_behaviour(steps: list[Step | float]) -> None:
    """And whatever came before, it answers the third of the same requests."""
    with harnesses() as make:
        sides = [Side(make, fast_path=True), Side(make, fast_path=False)]
        for step in [*steps, *RECOVERY]:
            play(step, sides)
        saved = requests_saved(sides)
        assert saved >= 0
        for _ in range(3):
            play(SENT_AGAIN, sides)
        if sides[0].clients[0].statuses[-3:] == [200] * 3:  # no circuit breaker is open
            assert requests_saved(sides) > saved


RECOVERY: list[Step | float] = [
    Done("up", lambda harness: setattr(harness.users, "down", False)),
    Done("put", lambda harness: harness.users.put(ALICE)),
    Done("keys", lambda harness: harness.keys.replace({k.digest: k for k in issued_keys()})),
    400.0,
    *[0.2] * len(CLIENTS),  # not all who are late are closed at once
]
SENT_AGAIN = Sent(0, [ask_for("alice", b"X-Not-Sent-Before: 1")])


def play(step: Step | float, sides: list[Side]) -> None:
    """Have something happen to both, and compare them."""
    loop = sides[0].harness.loop
    if isinstance(step, float):
        loop.now += step
        loop.settle()
    else:
        for side in sides:
            step(side)
            loop.settle()
    assert sides[0].seen == sides[1].seen


def requests_saved(sides: list[Side]) -> int:
    """How many requests fewer have reached the application with the fast path."""
    with_fast_path, without = sides
    return without.harness.app.asked - with_fast_path.harness.app.asked
