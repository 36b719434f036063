"""A client that checks every response of a service for answers that must never be sent."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from support.processes.service import KEY, Client, Connection, Reply, lookup_request, serving

Look = Callable[[], dict[str, int | bytes]]

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
"""No cache; the second serves stale answers while the backends are unavailable."""
QUICK_BREAKER = "breaker: {failures: 3, open_for: 30ms, open_max: 50ms}"

_TIMEOUT = 30
_PAUSE = 0.01
"""Seconds between two rounds of requests: what is waited for needs the processor too."""
_MAX_RESPONSE_TIME = 3.0
"""Seconds that one response may take: the request timeout, and a margin for a busy machine."""


class Person:
    """A user, as stored in a backend and as sent in a response."""

    def __init__(self, nickname: str, card: str, plan: str = "Free") -> None:
        self.nickname, self.card, self.plan = nickname, card, plan

    @property
    def row(self) -> tuple[str, str, str, None]:
        return self.nickname, self.card, self.plan, None

    @property
    def item(self) -> str:
        """The line of a fixture, with required fields last."""
        return f'  - {{nickname: {self.nickname}, card_number: "{self.card}", plan: {self.plan}}}\n'

    @property
    def body(self) -> bytes:
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
        """The inputs that identify the user."""
        return f"@{self.nickname}", f"{SITE}/m/{self.nickname}", self.card


ALICE = Person("alice", "4000123412341234")
AMY = Person("amy", "4000999999999999", "Gold")
CAROL = Person("carol", "5000123412341234", "Pro")
ABSENT = ("@anybody", "4000000000000000")
MATCH = 'match: "@a.*|4.*"'
"""Matches Alice, Amy and the absent user, but not Carol."""


def fixture(*people: Person) -> str:
    return f"count: {len(people)}\nusers:\n" + "".join(each.item for each in people)


def all_of(person: Person, wanted: int | bytes) -> dict[str, int | bytes]:
    """Expect the same for each input of a user."""
    return dict.fromkeys(person.spellings, wanted)


def absent(wanted: int) -> dict[str, int | bytes]:
    """Expect the same for each input of the absent user."""
    return dict.fromkeys(ABSENT, wanted)


PEOPLE = (ALICE, AMY, CAROL)
WELL = all_of(ALICE, ALICE.body) | {"@amy": 200, "@carol": 200} | absent(404)
"""Responses while there is no fault; Amy and Carol are users of the backend after Alice's."""


def assert_no_secret(log: str) -> None:
    """Fail if a log contains a key, or a user that was asked for or found."""
    users = [text for person in (ALICE, AMY, CAROL) for text in person.spellings]
    assert [text for text in (KEY, *ABSENT, *users) if text in log] == []


class CheckingClient:
    """Sends requests and fails at any response that must never be sent.

    An existing user is never answered 404, no response contains another user's record, and
    everything but a record and "not found" is the 503 error.
    """

    def __init__(self, port: int, *people: Person) -> None:
        self._client = Client(port)
        self._may: dict[str, set[bytes]] = {}
        self._there: set[str] = set()
        self.expect_found(*people)

    def expect_found(self, *people: Person) -> None:
        """These users exist; their records are valid beside those from before."""
        self.allow_changes(*people)
        self._there.update(text for person in people for text in person.spellings)

    def allow_changes(self, *people: Person) -> None:
        """These users are being added or removed: found and not found are both valid."""
        for person in people:
            for text in person.spellings:
                self._may.setdefault(text, set()).add(person.body)
                self._there.discard(text)

    def wait_for(self, wanted: Mapping[str, int | bytes], *, steady: int = 1) -> None:
        """Repeat requests until statuses or bodies are as expected, then ``steady`` more times."""
        deadline = time.monotonic() + _TIMEOUT
        with self._looking(wanted) as look:
            while (seen := look()) != wanted:
                assert time.monotonic() < deadline, seen
                time.sleep(_PAUSE)
            for _ in range(steady):
                assert look() == wanted

    def look_until(self, condition: Callable[[], bool], wanted: Mapping[str, int | bytes]) -> None:
        """Repeat requests, which must have the expected responses, until the condition holds."""
        deadline = time.monotonic() + _TIMEOUT
        with self._looking(wanted) as look:
            while not condition():
                assert time.monotonic() < deadline, "the condition never came to hold"
                assert look() == wanted
                time.sleep(_PAUSE)

    def ask(self, text: str) -> Reply:
        """Send one request and return its response, after the checks."""
        with self._client.connection() as connection:
            (reply,) = self._ask({text: connection}).values()
            return reply

    @contextmanager
    def _looking(self, wanted: Mapping[str, int | bytes]) -> Iterator[Look]:
        """Yield a function that sends all requests at once, each on a connection that is kept."""
        with ExitStack() as stack:
            connections = {text: stack.enter_context(self._client.connection()) for text in wanted}

            def look() -> dict[str, int | bytes]:
                return {
                    text: reply.body if isinstance(wanted[text], bytes) else reply.status
                    for text, reply in self._ask(connections).items()
                }

            yield look

    def _ask(self, connections: Mapping[str, Connection]) -> dict[str, Reply]:
        begun = time.monotonic()
        for text, connection in connections.items():
            connection.send(lookup_request(text))
        replies = {}
        for text, connection in connections.items():
            reply = connection.read_reply()
            assert time.monotonic() - begun < _MAX_RESPONSE_TIME
            assert reply is not None, "the connection was closed without a response"
            self._check(text, reply)
            replies[text] = reply
        return replies

    def _check(self, text: str, reply: Reply) -> None:
        if reply.status == 200:
            assert reply.body in self._may.get(text, ())
        elif reply.status == 404:
            assert reply.code == "not_found"
            assert text not in self._there, "a user who is there was answered 404"
        else:
            assert (reply.status, reply.code) == (503, "backend_unavailable")
            assert int(reply.headers["retry-after"]) > 0


class Clients(NamedTuple):
    """Clients of two services over the same backends, without and with stale answers."""

    forgetful: CheckingClient
    remembering: CheckingClient

    def wait_until_well(self) -> None:
        for client in self:
            client.wait_for(WELL, steady=0)

    def wait_for_fault(self, of_next: int, known: int = 503, absent: int | None = 503) -> None:
        """Wait for statuses of a user of the next backend, of Alice and of the absent user.

        Carol is not affected, and no one is where there are stale answers.
        """
        out: dict[str, int | bytes] = {"@carol": 200}
        if absent is not None:
            out |= dict.fromkeys(ABSENT, absent)
        self.forgetful.wait_for(out | all_of(ALICE, known) | {"@amy": of_next})
        self.remembering.wait_for(out | all_of(ALICE, ALICE.body) | {"@amy": 200})


@contextmanager
def serving_both(backends: str, folder: Path, *people: Person) -> Iterator[Clients]:
    """Run both services over these backends, and over a fixture with Amy and Carol."""
    (folder / "others.yaml").write_text(fixture(AMY, CAROL))
    others = "  - {name: others, kind: yaml, path: others.yaml}\n"
    with ExitStack() as stack:
        started = [
            stack.enter_context(serving(cache + backends + others, folder))
            for cache in (FORGETFUL, REMEMBERING)
        ]
        yield Clients(*(CheckingClient(each.port, *(people or PEOPLE)) for each in started))
