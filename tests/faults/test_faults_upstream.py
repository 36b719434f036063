"""What callers see while the upstream is away, frozen, or answers what it should not."""

from __future__ import annotations

import gzip
import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from support.faults.client import (
    ALICE,
    AMY,
    CAROL,
    FORGETFUL,
    MATCH,
    QUICK_BREAKER,
    REMEMBERING,
    CheckingClient,
    Person,
    absent,
    all_of,
    fixture,
)
from support.faults.proxy import (
    Exchange,
    Fault,
    ThreadedProxy,
    answering,
    cutting,
    dripping,
    flooding,
    freezing,
    http,
    passing,
    proxying_in_thread,
    refusing,
    resetting,
)
from support.processes.process import running
from support.processes.service import KEY, serving

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_secret_is_logged")]

PEOPLE = (ALICE, AMY, CAROL)
_UNAVAILABLE = absent(503)
NOT_FOUND = {"status": "error", "code": "not_found", "message": "User not found"}
WELL = all_of(ALICE, ALICE.body) | {"@amy": 200} | {"@carol": 200} | absent(404)


class Row(NamedTuple):
    """A fault, and what is answered for a user of the backend after the one that has it."""

    fault: Fault
    next: int


def said(status: int, *headers: str, body: bytes = b"{}", kind: str = "application/json") -> Fault:
    return answering(http(status, body, *headers, kind=kind))


FAULTS = {
    "closed": Row(refusing, 200),
    "frozen": Row(freezing, 200),
    "reset in the answer": Row(resetting, 200),
    "cut short": Row(cutting, 200),
    "one byte at a time": Row(dripping(0.01), 200),
    "HTML": Row(said(200, body=b"<html>", kind="text/html"), 503),
    "HTML as 404": Row(said(404, body=b"<html>", kind="text/html"), 503),
    "another 404": Row(said(404, body=b'{"status":"error","code":"no_such_route"}'), 503),
    "another user": Row(said(200, body=Person("bob", "41").body), 503),
    "redirect": Row(said(302, "Location: /elsewhere", body=ALICE.body), 503),
    "redirect kept": Row(said(307, "Location: /elsewhere", body=ALICE.body), 503),
    "100 MB": Row(flooding, 503),
    "a bomb": Row(said(200, "Content-Encoding: gzip", body=gzip.compress(bytes(10**7))), 503),
    "JSON without end": Row(said(200, body=b"[" * 10_000 + b"]" * 10_000), 503),
    "wrong types": Row(said(200, body=b'{"status":"ok","plan":1,"card_number":2}'), 503),
    "401": Row(said(401, "WWW-Authenticate: Bearer"), 503),
    "429": Row(said(429, "Retry-After: 1"), 200),
    "503": Row(said(503, "Retry-After: 1", body=json.dumps(NOT_FOUND).encode()), 200),
}
GONE = Row(said(404, body=json.dumps(NOT_FOUND).encode()), 200)
IN_SECOND_STEP = (
    "frozen",
    "cut short",
    "HTML",
    "HTML as 404",
    "another user",
    "401",
    "429",
    "gone",
)
"""One fault of each kind: both steps are sent and read by the same functions."""
SECOND = '{url: "/api/v1/identify/card?step=2", json: {card_number: "{id}"}, repeatable: true}'
TWO_STEPS = f""" cache_control: ignore,
     by_nickname: {{url: /api/v1/identify/url, json: {{input: "@{{nickname}}"}},
       repeatable: true, then: {SECOND}}},
     by_card: {{url: /api/v1/identify/card, json: {{card_number: "{{card_number}}"}},
       repeatable: true, then: {SECOND}}},
     response: {{id: card_number, select: "status == 'ok' && @", plan: plan,
       card_number: card_number, nickname: "trim_prefix(nickname, '@')",
       not_known_when: "status == 'error' && code == 'not_found'"}},"""
"""Requests to the service behind, the second by the card number in the first response."""


def in_second_step(fault: Fault) -> Fault:
    """Return a fault of second requests alone."""

    async def spoil(exchange: Exchange) -> None:
        await (fault if b"?step=2 " in exchange.request else passing)(exchange)

    return spoil


def upstream(port: int, requests: str = "") -> str:
    """The backends of a service in front of what listens at the port."""
    return (
        f"  - {{name: origin, kind: upstream, base_url: 'http://127.0.0.1:{port}', timeout: 250ms,"
        f"{requests} auth: {{kind: bearer, token: {KEY}}}, {MATCH}, on_unavailable: continue,"
        f" {QUICK_BREAKER}}}\n"
        "  - {name: others, kind: yaml, path: others.yaml}\n"
    )


def origin(folder: Path) -> str:
    """The configuration of the service behind."""
    (folder / "users.yaml").write_text(fixture(ALICE))
    return FORGETFUL + "  - {name: users, kind: yaml, path: users.yaml}\n"


@contextmanager
def services(
    port: int, folder: Path, requests: str = ""
) -> Iterator[tuple[CheckingClient, CheckingClient]]:
    """Yield clients of two services in front of the port: without and with stale answers."""
    (folder / "others.yaml").write_text(fixture(AMY, CAROL))
    backends = upstream(port, requests)
    with (
        serving(FORGETFUL + backends, folder) as first,
        serving(REMEMBERING + backends, folder) as second,
    ):
        yield CheckingClient(first.port, *PEOPLE), CheckingClient(second.port, *PEOPLE)


Proxied = tuple[ThreadedProxy, CheckingClient, CheckingClient]


def _proxied(factory: pytest.TempPathFactory, requests: str = "") -> Iterator[Proxied]:
    behind, before = factory.mktemp("origin"), factory.mktemp("services")
    with (
        serving(origin(behind), behind) as service,
        proxying_in_thread(service.port) as proxy,
        services(proxy.proxy.port, before, requests) as (forgetful, remembering),
    ):
        yield proxy, forgetful, remembering


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    """The two services in front of a proxy in front of a third."""
    yield from _proxied(tmp_path_factory)


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    """The same with lookups in two steps."""
    yield from _proxied(tmp_path_factory, TWO_STEPS)


@pytest.fixture
def proxied(shared: Proxied) -> Iterator[Proxied]:
    """The same, and at the end the proxy has no fault."""
    yield shared
    shared[0].become(passing)


@pytest.mark.parametrize("row", FAULTS.values(), ids=FAULTS.keys())
def test_bad_upstream_gives_503_or_the_stale_answer(row: Row, proxied: Proxied) -> None:
    """No user is "not found" meanwhile; users of other backends are not affected."""
    check_row(row, proxied)


@pytest.mark.parametrize("name", IN_SECOND_STEP)
def test_bad_second_step_gives_503_or_the_stale_answer(name: str, two_steps: Proxied) -> None:
    """Of absent users the first step says so, unless the upstream asked for a pause."""
    row = GONE if name == "gone" else FAULTS[name]
    check_row(Row(in_second_step(row.fault), 200), two_steps, {})


def check_row(row: Row, proxied: Proxied, of_absent: Mapping[str, int] = _UNAVAILABLE) -> None:
    """Check what clients get before, during and after a fault."""
    proxy, forgetful, remembering = proxied
    for client in (forgetful, remembering):
        client.wait_for(WELL, steady=0)
    proxy.become(row.fault)
    out = {**of_absent, "@carol": 200}
    forgetful.wait_for(out | all_of(ALICE, 503) | {"@amy": row.next})
    remembering.wait_for(out | all_of(ALICE, ALICE.body) | {"@amy": 200})
    proxy.become(passing)
    for client in (forgetful, remembering):
        client.wait_for(WELL, steady=0)


def test_redirect_is_not_followed(
    proxied: Proxied,
) -> None:
    """Only the two operations are ever requested."""
    proxy, forgetful, _ = proxied
    proxy.become(FAULTS["redirect kept"].fault)
    forgetful.wait_for(all_of(ALICE, 503))
    paths = {line.split()[1] for line in proxy.proxy.requests}
    assert paths == {b"/api/v1/identify/url", b"/api/v1/identify/card"}


def test_flood_is_not_read_to_its_end(
    proxied: Proxied,
) -> None:
    """The connection is closed early; only the buffers of the system were filled by then."""
    proxy, forgetful, _ = proxied
    proxy.become(flooding)
    sent, requests = proxy.proxy.sent, len(proxy.proxy.requests)
    forgetful.wait_for(all_of(ALICE, 503))
    floods = len(proxy.proxy.requests) - requests
    assert 0 < proxy.proxy.sent - sent < floods * 20_000_000


def test_stopped_process_gives_503_until_it_continues(tmp_path: Path) -> None:
    """The kernel still accepts its connections; nothing is read from them."""
    (tmp_path / "origin").mkdir()
    config = tmp_path / "origin" / "config.yaml"
    config.write_text(origin(config.parent))
    with (
        running(config) as process,
        services(process.port, tmp_path) as (forgetful, remembering),
    ):
        for client in (forgetful, remembering):
            client.wait_for(WELL, steady=0)
        process.send_signal(signal.SIGSTOP)
        out = absent(503) | {"@carol": 200} | {"@amy": 200}
        forgetful.wait_for(out | all_of(ALICE, 503))
        remembering.wait_for(out | all_of(ALICE, ALICE.body))
        process.send_signal(signal.SIGCONT)
        for client in (forgetful, remembering):
            client.wait_for(WELL, steady=0)
