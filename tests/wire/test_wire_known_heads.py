"""The fast path answers only what it has understood, and only while that holds."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from support.http.in_process import (
    MALFORMED_TOKENS,
    SHORT_LIVED_KEY,
    FakeClient,
    Harness,
    ask_for,
    reachable,
)
from support.processes.service import CARDS_ONLY_KEY, KEY
from tornado_idv.interfaces.shared import Purge
from tornado_idv.model import ByNickname, Query, User

OTHER_WAYS = {
    "an expectation": ask_for("alice", b"Expect: 100-continue"),
    "a repeated significant header": ask_for("alice", b"Accept: */*", b"accept: */*"),
    "an upgrade": ask_for("alice", b"Upgrade: h2c"),
    "TE": ask_for("alice", b"TE: trailers"),
    "a trailer": ask_for("alice", b"Trailer: X-A"),
    "a repeated address": ask_for("alice", b"X-Forwarded-For: ::1", b"x-forwarded-for: ::2"),
    "no token": ask_for("alice").replace(b"Authorization", b"X-Authorization"),
    "no length": ask_for("alice").replace(b"Content-Length", b"X-Length"),
    "another method": ask_for("alice").replace(b"POST", b"PUT"),
    "chunks": ask_for("alice")
    .replace(b"Content-Length: 19", b"Transfer-Encoding: chunked")
    .replace(b'{"input', b'13\r\n{"input')
    + b"\r\n0\r\n\r\n",
    "a body over 1 KiB": ask_for("alice", pad=1024),
    "a head with long names": ask_for("alice", b"X-" + b"a" * 700 + b": 1"),
    "many header fields": ask_for("alice", *(b"X-%d: 1" % number for number in range(40))),
    "a length with a zero in front": ask_for("alice").replace(b": 19", b": 019"),
    "an absolute target": ask_for("alice").replace(b"POST /", b"POST http://x/"),
    "a wrong key": ask_for("alice", key="B" * 40),
    "a key for other things": ask_for("alice", key=CARDS_ONLY_KEY),
    **{f"a token of {each[0]}": ask_for("alice", key=each) for each in MALFORMED_TOKENS},
    "no nickname": ask_for("a b"),
    "a lookup past the cache": ask_for("alice", b"X-IDV-Past-Cache: 1"),
    "another media type": ask_for("alice", b"Content-Type: text/plain"),
}
KNOWN_WAYS = {
    "a repeated inert header": ask_for("alice", b"X-A: 1", b"x-a: 2"),
    "a request id": ask_for("alice", b"X-Request-ID: 1"),
    "an invalid request id": ask_for("alice", b"X-Request-ID: {}"),
    "a coding of content": ask_for("alice", b"Content-Encoding: identity"),
    "an end": ask_for("alice", b"Connection: close"),
    "no end": ask_for("alice", b"Connection: keep-alive"),
    "HTTP/1.0": ask_for("alice", version="1.0"),
    "HTTP/1.0 that stays": ask_for("alice", b"Connection: keep-alive", version="1.0"),
    "a long value": ask_for("alice", b"X-A: " + b"a" * 8000),
    "two requests": ask_for("alice") * 2,
    "a request and a half": ask_for("alice") + b"POST / HT",
    "a line too many": ask_for("alice") + b"\r\n",
    "a user who is not there": ask_for("nobody"),
}


@pytest.fixture
def harness(make_harness: Callable[..., Harness]) -> Harness:
    return make_harness()


def teach(harness: Harness, data: bytes) -> None:
    """Asks until it is known: what memory has the answer to is learned."""
    for _ in range(2):
        assert not is_known(harness, data)


def is_known(harness: Harness, data: bytes) -> bool:
    """Whether a request is answered without the application."""
    before = harness.app.asked
    client = harness.ask(data)
    assert len(client.answers) == 1
    return harness.app.asked == before


@pytest.mark.parametrize("data", OTHER_WAYS.values(), ids=OTHER_WAYS)
def test_other_requests_bypass_fast_path(make_harness: Callable[..., Harness], data: bytes) -> None:
    """However often it comes, and answered as if there were no fast path."""
    harness, plain = make_harness(), make_harness(fast_path=False)
    teach(harness, ask_for("alice"))
    plain.ask(ask_for("alice"))
    for _ in range(3):
        before = harness.app.asked
        assert harness.ask(data).steady == plain.ask(data).steady
        assert harness.app.asked > before


@pytest.mark.parametrize(
    ("known", "other", "statuses"),
    [
        (b"Content-Encoding: identity", b"Content-Encoding: gzip", [415, 415]),
        (b"Content-Type: application/json", b"Content-Type: text/plain", [415, 415]),
        (b"Accept: */*", b"Accept: text/html", [406, 406]),
        (b"Connection: keep-alive", b"Connection: close", [200]),
        (b"Host: x", b"Host: y z", [400]),
    ],
)
def test_other_value_of_a_field_on_which_a_response_depends_is_not_known(
    make_harness: Callable[..., Harness], known: bytes, other: bytes, statuses: list[int]
) -> None:
    """Its head differs from a known one by nothing else."""
    harness, plain = make_harness(), make_harness(fast_path=False)
    first = ask_for("alice", *([] if known == b"Host: x" else [known]))
    teach(harness, first)
    data = first.replace(known, other)
    client = harness.ask(data, data)
    assert client.steady == plain.ask(data, data).steady
    assert client.statuses == statuses


@pytest.mark.parametrize("pieces", [1, 2], ids=["whole", "head and body"])
@pytest.mark.parametrize("data", KNOWN_WAYS.values(), ids=KNOWN_WAYS)
def test_request_with_a_known_head_is_answered_on_the_fast_path(
    make_harness: Callable[..., Harness], data: bytes, pieces: int
) -> None:
    """From the third time on, and as if there were no fast path, in one segment or two."""
    harness, plain = make_harness(), make_harness(fast_path=False)
    cut = data.index(b"\r\n\r\n") + 4 if pieces > 1 else len(data)
    for time in range(4):
        before = harness.app.asked
        parts = [part for part in (data[:cut], data[cut:]) if part]
        client, expected = harness.ask(*parts), plain.ask(*parts)
        assert (client.steady, client.socket.closed) == (expected.steady, expected.socket.closed)
        is_learning = time * data.count(b"POST /a") < 2
        assert (harness.app.asked > before) == is_learning
    before = harness.app.asked
    other = data.replace(b"alice", b"alicf")  # who has to be looked up
    client, expected = harness.ask(other), plain.ask(other)
    assert (client.steady, client.socket.closed) == (expected.steady, expected.socket.closed)
    assert harness.app.asked == before


@pytest.mark.parametrize("rest", [b'{"input": "@other"}', b"x" * 99])
def test_what_arrives_after_a_body_is_too_late_is_discarded(
    make_harness: Callable[..., Harness], rest: bytes
) -> None:
    """The connection has its last response, and all others their timeouts."""
    sides = make_harness(), make_harness(fast_path=False)
    seen = []
    for harness in sides:
        client = harness.ask(*[ask_for("alice")] * 3)
        idle = harness.call()
        client.send(ask_for("alice")[:-19])
        harness.loop.forward(5.2)
        client.send(rest)
        for _ in range(30):
            harness.loop.forward(0.5)
        seen.append((client.steady, client.socket.closed, client.socket.misuse, idle.socket.closed))
        assert client.statuses == [200, 200, 200, 408]
        assert idle.socket.closed
    assert seen[0] == seen[1]
    assert sides[0].access() == sides[1].access()


def test_segments_of_a_body_give_it_no_more_time(harness: Harness) -> None:
    """A client that sends a byte now and then would hold its connection for long."""
    data = ask_for("alice")
    client = harness.ask(*[data] * 3, data[:-19])
    for place in range(-19, -13):
        harness.loop.forward(0.9)
        client.send(data[place : place + 1])
    assert client.statuses == [200, 200, 200, 408]


@pytest.mark.parametrize(("first", "status"), [("alice", 200), ("nobody", 404), ("a b", 422)])
def test_body_has_its_time_after_one_that_came_in_two_segments(
    harness: Harness, first: str, status: int
) -> None:
    data, split = ask_for("alice"), ask_for(first)
    client = harness.ask(*[data] * 3, split[:-1], split[-1:], data[:-1])
    assert client.statuses == [200] * 3 + [status]
    harness.loop.forward(5.2)
    assert client.statuses == [200] * 3 + [status, 408]


def test_known_request_in_two_segments_is_not_taken_for_the_next_one(harness: Harness) -> None:
    """Whose head is not known, and which comes in two segments as well."""
    known, other = ask_for("alice"), ask_for("nobody", b"Accept: */*")
    teach(harness, known)
    client = harness.ask(known, known[:-1], known[-1:], other[:-1], other[-1:])
    assert client.statuses == [200, 200, 404]
    head = ask_for("", b"Accept: */*", pad=len(known) - 14)[: -len(known)]
    assert harness.ask(known, head, known).statuses == [200, 422], "a body is no request"


@pytest.fixture
def held(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> asyncio.Future[User | None]:
    """The result of each lookup from now on, which do not end before; a head is known."""
    teach(harness, ask_for("alice"))
    result: asyncio.Future[User | None] = harness.loop.create_future()

    async def find(_: Query) -> User | None:
        return await asyncio.shield(result)

    monkeypatch.setattr(harness.users, "find", find)
    return result


def test_lookup_may_take_longer_than_the_client_may_be_idle(
    harness: Harness, held: asyncio.Future[User | None]
) -> None:
    """Its request comes shortly before the end of that time."""
    client = harness.ask(ask_for("alice"))
    harness.loop.forward(9.7)
    client.send(ask_for("nobody"))
    harness.loop.forward(0.6)
    assert client.statuses == [200]
    held.set_result(None)
    harness.loop.settle()
    assert client.statuses == [200, 404]


def test_reload_during_a_lookup_leaves_the_connection_open(
    harness: Harness, held: asyncio.Future[User | None]
) -> None:
    client = harness.ask(ask_for("nobody"))
    harness.server.replace(harness.serving)
    held.set_result(None)
    client.send(ask_for("nobody"))
    assert client.statuses == [404, 404]


@pytest.mark.parametrize("answered", ["before", "during"])
def test_connection_with_a_lookup_is_closed_in_a_drain(
    harness: Harness, held: asyncio.Future[User | None], answered: str
) -> None:
    """Only a client without a response so far is waited for."""
    client = harness.ask(ask_for("nobody"))
    if answered == "before":
        held.set_result(None)
        harness.loop.settle()
    draining = harness.loop.create_task(harness.server.drain())
    harness.loop.settle()
    if answered == "during":
        held.set_result(None)
        harness.loop.settle()
    assert (client.statuses, client.socket.closed) == ([404], True)
    assert (b"Connection: close\r\n" in client.socket.sent) is (answered == "during")
    harness.loop.forward(1.2)
    assert draining.done()


def test_two_keys_share_a_template(make_harness: Callable[..., Harness]) -> None:
    """On one connection, too, and each is logged with its own key."""
    harness = make_harness()
    for _ in range(2):
        harness.ask(ask_for("alice"))
    before = harness.app.asked
    client = harness.ask(*[ask_for("alice"), ask_for("alice", key=SHORT_LIVED_KEY)] * 2)
    assert (client.statuses, harness.app.asked) == ([200] * 4, before)
    keys = re.findall(r'"key":"([^"]*)"', "".join(harness.access()))
    assert keys[-4:] == ["caller", "short", "caller", "short"]


@pytest.mark.parametrize("known", [0, 1, 2])
def test_body_of_another_length_is_awaited_or_split(harness: Harness, known: int) -> None:
    data = ask_for("alice")
    for _ in range(known):
        harness.ask(data)
    for _ in range(2):
        short = harness.ask(data[:-1])
        assert short.statuses == []
        assert short.send(b"}").statuses == [200]
        long = harness.ask(data + b"{")
        assert long.statuses == [200]
        assert long.send(b" / HTTP/1.1\r\n\r\n").statuses == [200, 400]


def test_pending_answer_is_sent_before_a_cached_one(harness: Harness) -> None:
    teach(harness, ask_for("alice"))
    client = harness.call()
    client.socket.arrive(ask_for("nobody", b"X-Request-ID: 1"))
    harness.loop.turn()
    client.send(ask_for("alice"))
    assert client.statuses == [404, 200]


def test_purge_takes_effect_at_the_next_request(harness: Harness) -> None:
    for purge in (
        lambda: harness.cache.apply(Purge()),
        lambda: harness.cache.apply(Purge(queries=(ByNickname("alice"),))),
        lambda: harness.cache.apply(Purge(("users",))),
    ):
        harness.ask(ask_for("alice"))
        harness.ask(ask_for("alice"))
        assert is_known(harness, ask_for("alice"))
        before = harness.users.asked
        purge()
        assert is_known(harness, ask_for("alice"))
        assert harness.users.asked == before + 1


def test_key_expiry_takes_effect_at_the_next_request(harness: Harness) -> None:
    data = ask_for("alice", key=SHORT_LIVED_KEY)
    teach(harness, data)
    assert is_known(harness, data)
    harness.loop.now += 99
    assert is_known(harness, data)
    harness.loop.now += 1
    assert harness.ask(data).statuses == [401]


@pytest.mark.parametrize("accepted", ["before", "before a reload", "after"])
def test_connection_without_a_request_is_closed_after_the_first_one_during_a_drain(
    harness: Harness, accepted: str
) -> None:
    """A connection may be accepted just before the socket is closed, and be here just after."""
    teach(harness, ask_for("alice"))
    busy = harness.call().send(ask_for("alice")[:9])
    client = harness.call()
    draining = harness.loop.create_task(harness.server.drain())
    harness.loop.settle()
    if accepted == "after":
        client = harness.call()
    elif accepted == "before a reload":
        harness.server.replace(harness.serving)
    client.send(ask_for("alice"))
    assert client.statuses == [200]
    assert b"Connection: close\r\n" in client.socket.sent
    busy.send(ask_for("alice")[9:])
    harness.loop.forward(2.4)
    assert draining.done()


def test_keys_are_stored_only_as_digests(harness: Harness) -> None:
    """Neither of a known request nor of one that came in halves, once its client has left."""
    for nickname in ("alice", "nobody"):
        data = ask_for(nickname)
        harness.ask(data, data, data[:150], data[150:]).socket.abort()
    harness.loop.settle()
    secrets = (KEY, KEY.split("_")[2])
    held = [*reachable(harness.fast_path)]
    assert any(isinstance(each, bytes) and b"@alice" in each for each in held)
    texts = [each for each in held if isinstance(each, str)]
    texts += [each.decode("latin-1") for each in held if isinstance(each, (bytes, bytearray))]
    assert not [text for text in texts if any(secret in text for secret in secrets)]


def test_same_bytes_of_different_clients_are_logged_with_their_own_addresses(
    make_harness: Callable[..., Harness],
) -> None:
    """A cached head is shared by connections; whether its address is trusted depends on each."""
    harness = make_harness(proxies=["127.0.0.1"])
    first, second = (
        ask_for("alice", b"X-Forwarded-For: " + ip) for ip in (b"192.0.2.1", b"192.0.2.2")
    )
    proxy, another = harness.call("127.0.0.1"), harness.call("192.0.2.9")
    fields = [b"X-Forwarded-For: " + each for each in (b"192.0.2.8", b"192.0.2.3", b"127.0.0.1")]
    for data in (first, second, first, first, second, ask_for("alice", *fields)):
        proxy.send(data)
        another.send(data)
    remotes = re.findall(r'"client":"([^"]*)"', "".join(harness.access()))
    proxied = [f"192.0.2.{number}" for number in (1, 2, 1, 1, 2, 3)]
    assert remotes[::2] == proxied
    assert {*remotes[1::2]} == {"192.0.2.9"}
    assert harness.app.asked == 4
    harness.server.replace(replace(harness.serving, proxies=None))
    proxy.send(first)
    assert '"client":"127.0.0.1"' in harness.access()[-1]


@pytest.mark.parametrize("fast_path", [True, False])
def test_clients_trace_is_logged(make_harness: Callable[..., Harness], *, fast_path: bool) -> None:
    harness = make_harness(fast_path=fast_path)
    traces = [f"{number:032x}" for number in range(1, 6)]
    for number, trace in enumerate(traces):  # misses and hits
        name = "alice" if number % 2 else f"alice{number}"
        harness.ask(ask_for(name, f"traceparent: 00-{trace}-00f067aa0ba902b7-01".encode()))
    harness.ask(ask_for("alice", b"traceparent: 00-1-1-01"))
    harness.ask(ask_for("alice"))
    assert re.findall(r'"trace_id":"([^"]*)"', "".join(harness.access())) == traces


def test_lookup_past_the_cache_asks_the_backends_and_costs_a_miss(
    make_harness: Callable[..., Harness],
) -> None:
    """A failure is no stale answer."""
    harness = make_harness(misses="2/hour")
    fresh = ask_for("alice", b"X-IDV-Past-Cache: 1")
    assert harness.ask(ask_for("alice")).statuses == [200]
    harness.users.known.clear()
    assert harness.ask(fresh).statuses == [404]
    harness.users.down = True
    assert harness.ask(fresh).statuses == [503]
    assert harness.users.asked == 3
    harness.users.down = False
    harness.users.known[ByNickname("alice")] = User("Free", "4000123412341234", "alice")
    assert harness.ask(fresh).statuses == [200]
    assert harness.ask(fresh).statuses == [429]
    assert harness.users.asked == 4


@pytest.mark.parametrize("fast_path", [True, False], ids=["fast path", "none"])
@pytest.mark.parametrize("nickname", ["alice", "nobody", "a b", "nobody{}"])
def test_id_of_the_client_that_proxies_do_not_know_is_returned_to_those_who_send_it(
    make_harness: Callable[..., Harness], nickname: str, *, fast_path: bool
) -> None:
    """Also with a response from a lookup, as each of those for ever new nicknames is."""
    harness = make_harness(fast_path=fast_path)
    data = [
        ask_for(nickname.format(number), b"X-IDV-Request-ID: %b" % each)
        for number, each in enumerate((b"a", b"b", b"c", b"{}"))
    ]
    sent = harness.ask(*data, ask_for(nickname.format(4))).socket.sent
    ids = [line[18:] for line in sent.split(b"\r\n") if line.startswith(b"X-IDV-Request-ID: ")]
    assert ids == [b"a", b"b", b"c"]
    assert sent.count(b"\r\nX-Request-ID: ") == 5


def test_rejected_head_is_cached_once_it_was_accepted(harness: Harness) -> None:
    client = harness.ask(ask_for("a b"), ask_for("a b"), ask_for("nob"), ask_for("nob"))
    assert client.send(ask_for("nob")).statuses == [422, 422, 404, 404, 404]
    assert harness.app.asked == 4


def test_heads_of_many_kinds_of_client_of_one_key_are_known(harness: Harness) -> None:
    """In rotation on one connection, as behind a gateway, and with another ``Host`` each time.

    Also with some requests of each kind in a row.
    """
    kinds = [ask_for("alice", b"X-Client-%d: 1" % number) for number in range(30)]
    client = harness.ask(*kinds, *kinds)
    before = harness.app.asked
    for number in range(10):
        client.send(*(each.replace(b"Host: x", b"Host: %d.x:8080" % number) for each in kinds))
    client.send(*(each for each in kinds for _ in range(3)))
    assert client.statuses == [200] * 450
    assert harness.app.asked == before


@pytest.mark.parametrize("turns", range(8))
def test_data_received_during_a_request_is_not_part_of_it(harness: Harness, turns: int) -> None:
    """Though both have the same head, and the fast path is to learn what each of them meant."""
    alice, nobody = ask_for("alice"), ask_for("nobod")
    client = harness.ask(nobody, nobody)
    client.socket.arrive(alice)
    for _ in range(turns):
        harness.loop.turn()
    client.send(nobody)
    client.send(alice, nobody, alice, alice)
    assert client.statuses == [404, 404, 200, 404, 200, 404, 200, 200]
    assert harness.ask(alice, nobody).statuses == [200, 404]


@pytest.mark.parametrize("fast_path", [True, False], ids=["fast path", "none"])
@pytest.mark.parametrize("key", [KEY, "B" * 40], ids=["good", "wrong"])
def test_long_head_is_not_cached(
    make_harness: Callable[..., Harness], key: str, *, fast_path: bool
) -> None:
    """There may be thousands of connections."""
    harness = make_harness(fast_path=fast_path)
    fields = [b"X-%d: " % number + b"a" * 150 for number in range(90)]
    client = harness.ask(*[ask_for("alice", *fields, key=key)] * 2)
    assert len(client.answers) == 2
    assert largest_held(client) <= 4096


def test_rejected_request_is_not_cached(harness: Harness) -> None:
    client = harness.ask(b"a" * 200_000)
    assert client.statuses == [431]
    assert largest_held(client) <= 4096


def largest_held(client: FakeClient) -> int:
    """The length of the longest bytes that a connection holds."""
    connection = client.connection
    held = reachable(vars(connection)["_parser"], vars(connection)["_match"])
    return max(len(each) for each in held if isinstance(each, (bytes, bytearray)))
