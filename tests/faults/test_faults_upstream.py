"""What callers see while the upstream is away, frozen, or answers what it should not."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from support.faults.client import (
    ALICE,
    FORGETFUL,
    MATCH,
    QUICK_BREAKER,
    Clients,
    Person,
    all_of,
    fixture,
    serving_both,
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
from support.processes.service import KEY, serving

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_secret_is_logged")]

NOT_FOUND = {"status": "error", "code": "not_found", "message": "User not found"}


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
    )


def origin(folder: Path) -> str:
    """The configuration of the service behind."""
    (folder / "users.yaml").write_text(fixture(ALICE))
    return FORGETFUL + "  - {name: users, kind: yaml, path: users.yaml}\n"


Proxied = tuple[ThreadedProxy, Clients]


def _proxied(factory: pytest.TempPathFactory, requests: str = "") -> Iterator[Proxied]:
    behind, before = factory.mktemp("origin"), factory.mktemp("services")
    with (
        serving(origin(behind), behind) as service,
        proxying_in_thread(service.port) as proxy,
        serving_both(upstream(proxy.proxy.port, requests), before) as clients,
    ):
        yield proxy, clients


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
    check_row(Row(in_second_step(row.fault), 200), two_steps, of_absent=None)


def check_row(row: Row, proxied: Proxied, of_absent: int | None = 503) -> None:
    """Check what clients get before, during and after a fault."""
    proxy, clients = proxied
    clients.wait_until_well()
    proxy.become(row.fault)
    clients.wait_for_fault(row.next, absent=of_absent)
    proxy.become(passing)
    clients.wait_until_well()


def test_redirect_is_not_followed(proxied: Proxied) -> None:
    """Only the two operations are ever requested."""
    proxy, clients = proxied
    proxy.become(FAULTS["redirect kept"].fault)
    clients.forgetful.wait_for(all_of(ALICE, 503))
    paths = {line.split()[1] for line in proxy.proxy.requests}
    assert paths == {b"/api/v1/identify/url", b"/api/v1/identify/card"}


def test_flood_is_not_read_to_its_end(proxied: Proxied) -> None:
    """The connection is closed early; only the buffers of the system were filled by then."""
    proxy, clients = proxied
    proxy.become(flooding)
    sent, requests = proxy.proxy.sent, len(proxy.proxy.requests)
    clients.forgetful.wait_for(all_of(ALICE, 503))
    floods = len(proxy.proxy.requests) - requests
    assert 0 < proxy.proxy.sent - sent < floods * 20_000_000
