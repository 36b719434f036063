"""Services over user directories with three kinds of HTTP API, and their faults.

The directories run in this process. A fault replaces their responses, even for existing users.
"""

import asyncio
import json
import random
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote

from soak.checker import Checker
from soak.fault_catalogue import Scenario, injected
from soak.harness import BACKEND_LIMITS, CONFIG, TIMES, Builder, Site
from soak.people import Person
from soak.reference import Reference, Source
from support.http.scripted_server import a_request, http

Respond = Callable[[list[Person]], bytes]
_LATE = 0.003
CANARY = Person("idv-canary", "9000000000000001")
BELIEVED = 0.5
"""The ``max_age`` of the canary of the directory ``late``, in seconds. Other canaries have 0."""
_AWAY = (0.15, 0.4)
"""Minimum and maximum time until a directory switches between empty and full, in seconds."""


def _json(status: int, record: object) -> bytes:
    return http(status, json.dumps(record).encode())


class Directory(Source, ABC):
    """A user directory with an HTTP API. During a fault, ``fault`` is called, not `respond`."""

    config: ClassVar[str]
    """The options of a backend for this directory, as YAML."""

    def __init__(self, letter: str, reference: Reference) -> None:
        self.fault: Respond | None = None
        self.repeats = False
        self.empty = False
        super().__init__(letter, reference)

    def make(self) -> None:
        pass

    def write(self) -> None:
        pass

    @abstractmethod
    def respond(self, found: Sequence[Person]) -> bytes:
        """Return the response to a request for one user. ``found`` has this user, or is empty."""

    def hidden(self, found: Sequence[Person]) -> Iterator[tuple[str, Respond]]:
        """Yield responses of this kind of directory that hide existing users, with their names."""
        yield from ()

    def record(self, person: Person) -> dict[str, str]:
        return {"login": person.nickname, "card": person.card, "plan": person.plan}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Respond to all requests of a connection."""
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                text = unquote((await a_request(reader)).decode())
                people = [] if self.empty else [CANARY, *self.people.values()]
                found = [each for each in people if _is_named(each, text)]
                writer.write((self.fault or self.respond)(found))
                await writer.drain()
                if self.repeats:
                    await asyncio.sleep(_LATE)
                    writer.write(self.respond([]))
        writer.close()


def _is_named(person: Person, request: str) -> bool:
    return any(re.search(rf"\b{text}\b", request) for text in (person.nickname, person.card))


class RestDirectory(Directory):
    """A directory with a path for each user. The response for a missing user is 404."""

    config = """
    by_nickname: {url: '/users/{nickname}'}
    by_card: {url: '/cards/{card_number}'}
    response:
      {nickname: login, card_number: card, plan: plan, not_known_when: "error == 'no such user'"}
    """

    def respond(self, found: Sequence[Person]) -> bytes:
        if not found:
            return _json(404, {"error": "no such user"})
        return _json(200, self.record(found[0]))


class ScimDirectory(Directory):
    """A directory that responds with a list and its total, as in SCIM."""

    config = """
    by_nickname: {url: /Users, query: {filter: 'login eq "{nickname}"', count: "2"}}
    by_card: {url: /Users, query: {filter: 'card eq "{card_number}"', count: "2"}}
    response:
      {found_when: totalResults != `0`, select: Resources, nickname: login, card_number: card,
       plan: plan}
    status: {404: broken}
    """

    def respond(self, found: Sequence[Person]) -> bytes:
        resources = [self.record(each) for each in found]
        return _json(200, {"totalResults": len(found), "Resources": resources})

    def hidden(self, found: Sequence[Person]) -> Iterator[tuple[str, Respond]]:
        yield "total without the users", lambda _: _json(200, {"totalResults": 1, "Resources": []})
        yield "list of another name", lambda _: _json(200, {"total": 0, "items": []})


class GraphqlDirectory(Directory):
    """A directory for GraphQL queries. Each query also requests a witness, a readable record."""

    config = """
    by_nickname:
      url: /graphql
      json: {query: 'query ($key: ID!) {{ found witness }}', variables: {key: "{nickname}"}}
      repeatable: true
    by_card:
      url: /graphql
      json: {query: 'query ($card: ID!) {{ found witness }}', variables: {card: "{card_number}"}}
      repeatable: true
    response:
      {broken_when: errors || !data || !(data.witness), select: data.found, nickname: login,
       card_number: card, plan: plan}
    status: {404: broken}
    """

    def respond(self, found: Sequence[Person]) -> bytes:
        people = [self.record(each) for each in found]
        return _json(200, {"data": {"found": people, "witness": {"login": "w"}}})

    def hidden(self, found: Sequence[Person]) -> Iterator[tuple[str, Respond]]:
        no_rows: dict[str, Any] = {"found": [], "witness": None}
        yield "rows hidden", lambda _: _json(200, {"data": no_rows})
        error = [{"message": "permission denied"}]
        yield "error beside data", lambda _: _json(200, {"data": no_rows, "errors": error})
        yield "other member", lambda _: _json(200, {"data": {"witness": {"login": "w"}}})


def of_directory(directory: Directory) -> Iterator[Scenario]:
    """Yield the faults of a directory. Most leave the existence of a user undetermined."""
    responses: dict[str, Respond] = {
        "page to log in": lambda _: http(200, b"<html>", kind="text/html"),
        "empty object": lambda _: _json(200, {}),
        "null": lambda _: _json(200, None),
        "text": lambda _: _json(200, "maintenance"),
        "no body": lambda _: http(200),
        "204": lambda _: http(204),
        "HTML 404": lambda _: http(404, b"<html>", kind="text/html"),
        "404 of another route": lambda _: _json(404, {"error": "no such route"}),
        "400": lambda _: _json(400, {"error": "bad filter"}),
        "401": lambda _: _json(401, {"error": "token expired"}),
        "403": lambda _: _json(403, {"error": "permission denied"}),
        "410": lambda _: _json(410, {"error": "moved"}),
        "fields renamed": lambda found: _renamed(directory.respond(found)),
        **dict(directory.hidden([])),
    }
    for name, respond in responses.items():
        blind = name != "fields renamed"
        set_fault = partial(setattr, directory, "fault")
        inject = injected(partial(set_fault, respond), partial(set_fault, None))
        yield Scenario(name, directory, inject, blind=blind, harms_file=False)
    repeat, stop = (partial(setattr, directory, "repeats", each) for each in (True, False))
    inject = injected(repeat, stop)
    yield Scenario("late second response", directory, inject, blind=False, harms_file=False)
    going = partial(_coming_and_going, directory)
    yield Scenario("empty and back", directory, going, blind=False, harms_file=False)
    yield emptied(directory)


def emptied(directory: Directory) -> Scenario:
    """Return the fault of a directory without any users."""
    empty, fill = (partial(setattr, directory, "empty", each) for each in (True, False))
    inject = injected(empty, fill)
    return Scenario("emptied", directory, inject, blind=True, harms_file=False)


@asynccontextmanager
async def _coming_and_going(directory: Directory) -> AsyncIterator[None]:
    async def change() -> None:
        while True:
            directory.empty = not directory.empty
            await asyncio.sleep(random.uniform(*_AWAY))

    task = asyncio.create_task(change())
    yield
    task.cancel()
    directory.empty = False


def _renamed(response: bytes) -> bytes:
    """Rename a member of the record without changing the length of the response."""
    return response.replace(b'"card"', b'"carD"')


@asynccontextmanager
async def running_directory_sites(folder: Path, max_seconds: float) -> AsyncIterator[list[Site]]:
    """Run a service over a directory of each kind, for at most ``max_seconds``.

    Each directory has a canary. The canary of ``late`` has a ``max_age``: a service trusts this
    directory for this time after it was emptied.
    """
    kinds = {"rest": RestDirectory, "scim": ScimDirectory, "graphql": GraphqlDirectory}
    kinds["late"] = RestDirectory
    believed = dict.fromkeys(kinds, 0.0) | {"late": BELIEVED}
    async with AsyncExitStack() as stack:
        directories, configs, references = {}, {}, {}
        for name, kind in kinds.items():
            reference = references[name] = Reference()
            directory = directories[name] = kind(name[0], reference)
            server = await asyncio.start_server(directory.serve, "127.0.0.1")
            stack.callback(server.close)
            port = server.sockets[0].getsockname()[1]
            head = f"  - name: {name}\n    kind: upstream\n    base_url: http://127.0.0.1:{port}\n"
            times = f"    cache_ttl: {TIMES.ttl * 1000:.0f}ms\n"
            times += (
                f"    canary: {{nickname: '@{CANARY.nickname}', card_number: '{CANARY.card}',\n"
            )
            times += f"             max_age: {believed[name] * 1000:.0f}ms}}\n"
            limits = f"    {BACKEND_LIMITS.replace(', breaker', chr(10) + '    breaker')}"
            configs[name] = CONFIG + head + times + limits + directory.config
        services = await Builder(folder, max_seconds, stack).serve(**configs)
        yield [
            Site(
                f"upstream, {name}",
                [services[name].port],
                Checker(references[name], TIMES, name[0], believed=believed[name]),
                [directory],
                [emptied(directory)] if believed[name] else [*of_directory(directory)],
            )
            for name, directory in directories.items()
        ]
