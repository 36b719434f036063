"""The load of an oracle run: requests to one service, each checked against the reference."""

import asyncio
import json
import time
from contextlib import suppress
from random import Random

import aiohttp

from soak.checker import Episode, Request, Response
from soak.harness import QUIET, Site
from soak.people import SITE, Person
from soak.reference import Source

BAD = ("alice", "@a b", "@", "https://evil.example/m/alice", f"{SITE}/m/..", "12x", "٤٠", "")
_CLIENTS = 8
_BATCHES = 0.2
"""The share of batches among the requests."""
_BATCH_SIZES = (1, 2, 5, 20, 50)
_STATUSES = {"ok": 200, "not_found": 404, "invalid_format": 422, "backend_unavailable": 503}


class Load:
    """Sends requests to one service: for existing users, absent users and invalid values."""

    def __init__(self, site: Site, session: aiohttp.ClientSession, random: Random) -> None:
        self._site, self._session, self._random = site, session, random
        self._strangers = 1000

    async def run(self, until: float, rate: float) -> None:
        """Run concurrent clients. Their pauses result in ``rate`` requests per second."""
        async with asyncio.TaskGroup() as clients:
            for _ in range(_CLIENTS):
                clients.create_task(self._call(until, _CLIENTS / rate))

    async def _call(self, until: float, pause: float) -> None:
        while time.monotonic() < until:
            if self._random.random() < _BATCHES:
                await self._ask_many()
            else:
                await self.ask(*self._random_request())
            await asyncio.sleep(pause * self._random.uniform(0.5, 1.5))

    def _random_request(self) -> tuple[str, Person | None]:
        random = self._random
        kind = random.random()
        if kind < 0.1:
            return random.choice(BAD), None
        source = random.choice(self._site.sources)
        if kind < 0.25:
            person = random.choice([*source.recent])
        elif kind < 0.7:
            people = [*source.people.values()]
            person = random.choice(people[: random.choice([5, len(people)])])
        elif kind < 0.85:
            person = source.stranger(random.randrange(20))
        else:
            person = self.newcomer(source)
        return random.choice(person.spellings), person

    def newcomer(self, source: Source) -> Person:
        """Return an absent user who was never requested, and so is not in a cache."""
        self._strangers += 1
        return source.stranger(self._strangers)

    async def ask(self, text: str, person: Person | None, port: int | None = None) -> Response:
        """Send a request to ``port``, or to a random process. Check and count the response."""
        episode = self._site.episode
        port = port or self._random.choice(self._site.ports)
        request = Request(text, person, time.monotonic(), port)
        path = "card" if _is_card(text) else "url"
        response = await self._send(path, _item(text), port)
        self._judge(request, response, episode)
        return response

    async def _ask_many(self) -> None:
        """Send a batch of lookups. Check and count each result like the response of a lookup."""
        episode, port = self._site.episode, self._random.choice(self._site.ports)
        asked = [self._random_request() for _ in range(self._random.choice(_BATCH_SIZES))]
        requests = [Request(text, person, time.monotonic(), port) for text, person in asked]
        items = [_item(text) for text, _ in asked]
        response = await self._send("batch", {"items": items}, port)
        responses = [response] * len(requests)
        if response.status == 200:
            responses = [
                _as_single(each, response) for each in json.loads(response.body)["results"]
            ]
        for request, each in zip(requests, responses, strict=True):
            self._judge(request, each, episode)

    def _judge(self, request: Request, response: Response, episode: Episode | None) -> None:
        outcome = self._site.checker.outcome(request, response)
        row = episode.scenario.name if episode else QUIET
        self._site.tallies[row].add(outcome, response.ended - request.begun)
        if outcome == "wrong":
            text = f"{self._site.name}: {row}: {request.text} -> {response}"
            self._site.violations.append(f"{text}; {self._site.checker.context(request)}")

    async def _send(self, path: str, record: object, port: int) -> Response:
        url = f"http://127.0.0.1:{port}/api/v1/identify/{path}"
        status, body, retry_after = 0, b"", None
        with suppress(aiohttp.ClientError, TimeoutError):
            async with self._session.post(url, json=record) as response:
                body = await response.read()
                status, retry_after = response.status, response.headers.get("Retry-After")
        return Response(status, body, retry_after, time.monotonic())


def _is_card(text: str) -> bool:
    return text[:1].isdigit() or not text


def _item(text: str) -> dict[str, str]:
    return {"card_number" if _is_card(text) else "input": text}


def _as_single(record: dict[str, str], batch: Response) -> Response:
    """Return the response that a single lookup with this result of a batch would have."""
    status = _STATUSES.get(record.get("code", record["status"]), 0)
    body = json.dumps(record, separators=(",", ":")).encode()
    return Response(status, body, "1" if status == 503 else None, batch.ended)
