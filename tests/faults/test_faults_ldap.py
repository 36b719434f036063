"""Responses to clients while the LDAP server is away, frozen, or responds as it should not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from support.databases.ldap_proxy import (
    Fault,
    dripping,
    ending_with,
    flooding,
    freezing,
    ldap_proxy,
    passing,
    refusing,
    replacing,
    resetting,
    sending,
    under_another_id,
)
from support.databases.ldap_server import ADMIN, PASSWORD, PEOPLE, LdapServer, person, require
from support.faults.client import ALICE, MATCH, QUICK_BREAKER, Clients, serving_both

require()

from idv_ldap import pool  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_secret_is_logged")]

TIME_LIMIT, SIZE_LIMIT, NO_SUCH_OBJECT, INAPPROPRIATE_MATCHING = 3, 4, 32, 18
REFERRAL, INVALID_CREDENTIALS, INSUFFICIENT_ACCESS, BUSY, UNAVAILABLE = 10, 49, 50, 51, 52


class Row(NamedTuple):
    """A fault; statuses for a user of the next backend, and for one that has no entry."""

    fault: Fault
    next: int
    absent: int = 503


FAULTS = {
    "closed": Row(refusing, 200),
    "frozen": Row(freezing, 200),
    "reset in the response": Row(resetting, 200),
    "one byte at a time": Row(dripping, 200),
    "100 MB": Row(flooding, 200),
    "HTTP": Row(sending(b"HTTP/1.1 400 Bad Request\r\n\r\n"), 200),
    "bytes that are no message": Row(sending(b"\x30\x05\x02\x01\x01\x65\x7f"), 200),
    "another message id": Row(under_another_id, 200),
    "another user": Row(replacing((b"\x05alice", b"\x05bobby"), (b"1234", b"4321")), 200, 404),
    "referral": Row(ending_with(REFERRAL), 503),
    "time limit": Row(ending_with(TIME_LIMIT), 200),
    "size limit": Row(ending_with(SIZE_LIMIT), 503),
    "no such object": Row(ending_with(NO_SUCH_OBJECT), 503),
    "inappropriate matching": Row(ending_with(INAPPROPRIATE_MATCHING), 503),
    "invalid credentials": Row(ending_with(INVALID_CREDENTIALS), 503),
    "insufficient access": Row(ending_with(INSUFFICIENT_ACCESS), 503),
    "busy": Row(ending_with(BUSY), 200),
    "unavailable": Row(ending_with(UNAVAILABLE), 200),
}


class Shared(NamedTuple):
    """What makes the proxy before a server fail, and clients."""

    become: Callable[[Fault], None]
    clients: Clients


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    folder = tmp_path_factory.mktemp("ldap")
    server = LdapServer(folder / "server", persons=[person("alice", ALICE.card)])
    server.start()
    with pytest.MonkeyPatch.context() as patch, ldap_proxy(server.port) as (port, become):
        patch.setattr(pool, "RETRY_INTERVAL", 0.05)
        backend = {
            "name": "staff",
            "kind": "ldap",
            "uris": [f"ldap://127.0.0.1:{port}"],
            "bind": {"dn": ADMIN, "password": PASSWORD},
            "base_dn": PEOPLE,
            "by_nickname": {"filter": "(uid={nickname})"},
            "by_card": {"filter": "(employeeNumber={card_number})"},
            "response": {
                "nickname": "uid",
                "card_number": "employeeNumber",
                "plan": {"path": "title", "default": "Free"},
            },
            "timeout": "250ms",
            "connect_timeout": "300ms",
            "on_unavailable": "continue",
        }
        text = f"  - {{{json.dumps(backend)[1:-1]}, {MATCH}, {QUICK_BREAKER}}}\n"
        with serving_both(text, folder) as clients:
            yield Shared(become, clients)
    server.stop()


@pytest.mark.parametrize("row", FAULTS.values(), ids=FAULTS.keys())
def test_bad_ldap_server_gives_503_or_the_stale_answer(row: Row, shared: Shared) -> None:
    """No user is "not found" meanwhile; afterwards lookups succeed without a restart."""
    shared.clients.wait_until_well()
    shared.become(row.fault)
    try:
        shared.clients.wait_for_fault(row.next, absent=row.absent)
    finally:
        shared.become(passing)
    shared.clients.wait_until_well()
