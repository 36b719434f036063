"""The fault scenarios of the oracle, each with its source of users."""

import asyncio
import gzip
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
)
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from soak.file_faults import (
    BOMBS,
    GARBAGE,
    Damage,
    cut,
    drop_table,
    empty,
    garble,
    locked,
    overwrite,
    renamed_over,
)
from soak.people import Person
from soak.proxy import (
    Fault,
    FaultProxy,
    answering,
    cutting,
    dripping,
    flooding,
    freezing,
    http,
    passing,
    refusing,
    resetting,
)
from soak.reference import FileSource, Source
from support.processes.process import ServiceProcess

Inject = Callable[[], AbstractAsyncContextManager[None]]
_GZIP = "Content-Encoding: gzip"
_NOT_FOUND = b'{"status":"error","code":"not_found","message":"User not found"}'


@dataclass(frozen=True)
class Scenario:
    """A fault. With ``blind``, the backend cannot determine whether a user exists.

    During the fault, lookups may fail in the processes at the ports ``affects``, by default in all
    processes. The other processes, or those at ``followers``, must notice the changes ``followed``,
    with ``lag`` additional seconds. At the end, ``clean_up`` runs in a thread.
    """

    name: str
    source: Source
    inject: Inject
    blind: bool
    harms_file: bool = True
    affects: Collection[int] | None = None
    followed: Collection[str] = ()
    followers: Collection[int] | None = None
    lag: float = 0.0
    clean_up: Callable[[], None] | None = None

    @property
    def letter(self) -> str:
        """The first letter of the affected nicknames."""
        return self.source.letter


def of_fixture(source: FileSource) -> Iterator[Scenario]:
    """Yield the faults of a fixture. During each fault, the old users are still served."""
    bad: dict[str, Damage] = {
        "half-written": cut,
        "invalid": lambda path: overwrite(path, b"users: [{nickname: "),
        "emptied": empty,
        "not UTF-8": lambda path: overwrite(path, b"users: []\n\xff"),
        "deleted": Path.unlink,
        **{f"bomb of {name}": _written(text) for name, text in BOMBS.items()},
    }
    for name, damage in bad.items():
        yield Scenario(name, source, injected(partial(damage, source.path)), blind=False)
    replace = repeated(partial(source.mark, recreate=True), pause=0.1)
    yield Scenario("replaced each 100 ms", source, replace, blind=False)


def of_database(source: FileSource) -> Iterator[Scenario]:
    """Yield the faults of a database. During a fault, users are undetermined or served stale."""
    bad: dict[str, Damage] = {
        "truncated": cut,
        "zero-length": empty,
        "garbage over it": garble,
        "garbage renamed": renamed_over(GARBAGE),
        "emptiness renamed": renamed_over(b""),
        "table dropped": drop_table,
        "deleted": Path.unlink,
    }
    for name, damage in bad.items():
        yield Scenario(name, source, injected(partial(damage, source.path)), blind=True)
    yield Scenario("created again", source, within(), blind=False)
    lock = within(partial(locked, source.path))
    yield Scenario("locked", source, lock, blind=True, harms_file=False)


def of_upstream(source: Source, proxy: FaultProxy, process: ServiceProcess) -> Iterator[Scenario]:
    """Yield the faults of an upstream service and of the connection to it."""
    faults: dict[str, Fault] = {
        "closed": refusing,
        "frozen": freezing,
        "reset in the answer": resetting,
        "cut short": cutting,
        "byte by byte": dripping(0.02),
        "HTML": answering(http(200, b"<html>", kind="text/html")),
        "HTML as 404": answering(http(404, b"<html>", kind="text/html")),
        "404 of another route": answering(http(404, b'{"status":"error","code":"no_such_route"}')),
        "another user": answering(http(200, Person("another-user", "1").body)),
        "redirect": answering(http(302, _NOT_FOUND, "Location: /elsewhere")),
        "redirect that keeps the method": answering(http(307, _NOT_FOUND, "Location: /elsewhere")),
        "100 MB": flooding,
        "10 MB in 10 KB": answering(http(200, gzip.compress(bytes(10**7)), _GZIP)),
        "nested JSON": answering(http(200, b"[" * 10_000 + b"]" * 10_000)),
        "wrong types": answering(http(200, b'{"status":"ok","plan":1,"card_number":2}')),
        "401": answering(http(401, _NOT_FOUND)),
        "429": answering(http(429, _NOT_FOUND, "Retry-After: 5")),
        "503": answering(http(503, _NOT_FOUND, "Retry-After: 5")),
    }
    for name, fault in faults.items():
        inject = between(partial(proxy.become, fault), partial(proxy.become, passing))
        yield Scenario(name, source, inject, blind=True, harms_file=False)
    stop, go_on = (partial(process.send_signal, each) for each in (signal.SIGSTOP, signal.SIGCONT))
    yield Scenario("SIGSTOP", source, injected(stop, go_on), blind=True, harms_file=False)


def injected(begin: Callable[[], object], end: Callable[[], object] | None = None) -> Inject:
    """Return a fault that calls ``begin`` when it begins and ``end`` when it ends, in a thread."""

    @asynccontextmanager
    async def inject() -> AsyncIterator[None]:
        await asyncio.to_thread(begin)
        try:
            yield
        finally:
            if end is not None:
                await asyncio.to_thread(end)

    return inject


def within(*contexts: Callable[[], AbstractContextManager[object]]) -> Inject:
    """Return a fault that lasts while it keeps these contexts open."""

    @asynccontextmanager
    async def inject() -> AsyncIterator[None]:
        with ExitStack() as stack:
            for each in contexts:
                stack.enter_context(each())
            yield

    return inject


def repeated(function: Callable[[], object], pause: float = 0.0) -> Inject:
    """Return a fault that calls a function repeatedly, ``pause`` seconds after each call."""

    @asynccontextmanager
    async def inject() -> AsyncIterator[None]:
        is_over = False

        def repeat() -> None:
            while not is_over:
                function()
                time.sleep(pause)

        repeating = asyncio.create_task(asyncio.to_thread(repeat))
        yield
        is_over = True
        await repeating

    return inject


def _written(text: str) -> Damage:
    return lambda path: overwrite(path, text.encode())


def between(begin: Callable[[], Awaitable[None]], end: Callable[[], Awaitable[None]]) -> Inject:
    """Return a fault that calls and awaits ``begin`` when it begins, and ``end`` when it ends."""

    @asynccontextmanager
    async def inject() -> AsyncIterator[None]:
        await begin()
        yield
        await end()

    return inject
