"""One who asks a service over HTTP, and holds every answer against what must never be."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from support.service import KEY, Client, Reply

SITE = "https://profiles.example"
CONFIG = f"""\
profile_sites: [{SITE}]
server: {{port: 0, request_timeout: 1s}}
auth: {{keys: [{{id: caller, token: {KEY}}}]}}
cache: {{ttl: 0s, negative_ttl: 0s, failure_memo: 0s, stale_if_error: %s}}
logging: {{level: warning}}
backends:
"""
FORGETFUL, REMEMBERING = CONFIG % "0s", CONFIG % "1h"
"""Each lookup asks the backends; the second serves what it found before while they cannot tell."""
QUICK_BREAKER = "breaker: {failures: 3, open_for: 30ms, open_max: 50ms}"

_PATIENCE = 10.0
_LONGEST = 3.0
"""Seconds that one answer may take: the request's time, and a busy machine."""


class Person:
    """A user as tests write them down and meet them again."""

    def __init__(self, nickname: str, card: str, plan: str = "Free") -> None:
        self.nickname, self.card, self.plan = nickname, card, plan

    @property
    def row(self) -> tuple[str, str, str, None]:
        """For a table."""
        return self.nickname, self.card, self.plan, None

    @property
    def item(self) -> str:
        """For a fixture: one line, with what is required at its end."""
        return f'  - {{nickname: {self.nickname}, card_number: "{self.card}", plan: {self.plan}}}\n'

    @property
    def body(self) -> bytes:
        """The record that is answered."""
        return json.dumps(
            {
                "status": "ok",
                "plan": self.plan,
                "card_number": self.card,
                "nickname": f"@{self.nickname}",
                "profile_url": f"{SITE}/m/{self.nickname}",
            },
            separators=(",", ":"),
        ).encode()

    @property
    def spellings(self) -> tuple[str, str, str]:
        """What the user is asked for with."""
        return f"@{self.nickname}", f"{SITE}/m/{self.nickname}", self.card


ALICE = Person("alice", "4000123412341234")
AMY = Person("amy", "4000999999999999", "Gold")
CAROL = Person("carol", "5000123412341234", "Pro")
NOBODY = ("@anybody", "4000000000000000")
MATCH = 'match: "@a.*|4.*"'
"""Alice, Amy and nobody are asked for here, and Carol is not."""


def fixture(*people: Person) -> str:
    """A fixture file that says how many it holds."""
    return f"count: {len(people)}\nusers:\n" + "".join(each.item for each in people)


def all_of(person: Person, wanted: int | bytes) -> dict[str, int | bytes]:
    """The same is wanted for each spelling."""
    return dict.fromkeys(person.spellings, wanted)


def nobody(wanted: int) -> dict[str, int | bytes]:
    """The same is wanted for each who does not exist."""
    return dict.fromkeys(NOBODY, wanted)


class Witness:
    """Asks, and fails at an answer that may not be given, wanted just then or not.

    Who is there is never answered 404, nobody is ever answered the record of another, and
    all that is neither a record nor "not found" is the 503 record.
    """

    def __init__(self, port: int, *people: Person) -> None:
        self._client = Client(port)
        self._may: dict[str, set[bytes]] = {}
        self._there: set[str] = set()
        self.knows(*people)

    def knows(self, *people: Person) -> None:
        """These are there; their records may be answered beside those of before."""
        self.awaits(*people)
        self._there.update(text for person in people for text in person.spellings)

    def awaits(self, *people: Person) -> None:
        """These come or go just now: found and not found are both right."""
        for person in people:
            for text in person.spellings:
                self._may.setdefault(text, set()).add(person.body)
                self._there.discard(text)

    def sees(self, wanted: Mapping[str, int | bytes], *, steady: int = 1) -> None:
        """Asks until statuses or bodies are the wanted ones, and then some times more."""
        deadline = time.monotonic() + _PATIENCE
        while (seen := self._look(wanted)) != wanted:
            assert time.monotonic() < deadline, seen
        for _ in range(steady):
            assert self._look(wanted) == wanted

    def ask(self, text: str) -> Reply:
        """One answer, which is one that may be given."""
        begun = time.monotonic()
        reply = (self._client.by_card if text.isdigit() else self._client.by_input)(text)
        assert time.monotonic() - begun < _LONGEST
        if reply.status == 200:
            assert reply.body in self._may.get(text, ())
        elif reply.status == 404:
            assert reply.code == "not_found"
            assert text not in self._there, "a user who is there was answered 404"
        else:
            assert (reply.status, reply.code) == (503, "backend_unavailable")
            assert int(reply.headers["retry-after"]) > 0
        return reply

    def _look(self, wanted: Mapping[str, int | bytes]) -> dict[str, int | bytes]:
        with ThreadPoolExecutor(len(wanted)) as callers:
            replies = dict(zip(wanted, callers.map(self.ask, wanted), strict=True))
        return {
            text: reply.body if isinstance(wanted[text], bytes) else reply.status
            for text, reply in replies.items()
        }
