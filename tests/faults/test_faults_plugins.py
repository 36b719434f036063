"""What callers see while a plugin from elsewhere misbehaves inside a real process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from support.faults.client import (
    ALICE,
    AMY,
    CAROL,
    FORGETFUL,
    MATCH,
    PEOPLE,
    QUICK_BREAKER,
    REMEMBERING,
    CheckingClient,
    Clients,
    absent,
    assert_no_secret,
    fixture,
)
from support.processes.process import ServiceProcess, eventually, running, write_plugin

pytestmark = pytest.mark.slow

PLUGIN = f"""\
import asyncio
import time

import tornado_idv

ALICE = tornado_idv.User("Free", "{ALICE.card}", "alice")
BOB = tornado_idv.User("Free", "41", "bob")


class UnrulyOptions(tornado_idv.BackendOptions):
    mood: tornado_idv.ConfigPath


class Unruly(tornado_idv.Backend[UnrulyOptions]):
    '''Knows Alice, and does what its mood is, which is the name of a method.'''

    options_type = UnrulyOptions

    async def find(self, query):
        mood = self.options.mood.read_text()
        return await getattr(self, mood)(query)

    async def well(self, query):
        return ALICE if query.text in ("@alice", ALICE.card_number) else None

    async def blocks(self, query):
        time.sleep(0.02)
        return await self.well(query)

    async def raises(self, query):
        raise RuntimeError(f"about {{query.text}}")

    async def exits(self, query):
        raise SystemExit(3)

    async def raises_a_group(self, query):
        raise ExceptionGroup("more", [KeyError(query.text)])

    async def cancels_itself(self, query):
        raise asyncio.CancelledError

    async def times_out(self, query):
        raise TimeoutError

    async def says_unavailable(self, query):
        raise tornado_idv.Unavailable("its own words")

    async def says_false(self, query):
        return False

    async def says_a_dict(self, query):
        return {{"nickname": "alice"}}

    async def says_bytes(self, query):
        return tornado_idv.User("Free", b"4000123412341234", "alice")

    async def says_another(self, query):
        return BOB

    async def never_returns(self, query):
        await asyncio.Event().wait()

    async def will_not_be_cancelled(self, query):
        while self.options.mood.read_text() == "will_not_be_cancelled":
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                pass


@tornado_idv.hookimpl
def idv_kinds():
    return tornado_idv.Kinds({{"unruly": Unruly}})
"""
BACKENDS = f"""\
  - {{name: unruly, kind: unruly, mood: mood, timeout: 200ms, {MATCH},
     on_unavailable: continue, {QUICK_BREAKER}}}
  - {{name: others, kind: yaml, path: others.yaml}}
"""


class Row(NamedTuple):
    """A mood; responses for Alice, for the absent user, for a user of the next backend."""

    mood: str
    known: int = 503
    absent: int = 503
    next: int = 503


MOODS = (
    Row("blocks", 200, 404, 200),
    Row("raises"),
    Row("exits"),
    Row("raises_a_group"),
    Row("cancels_itself"),
    Row("times_out", next=200),
    Row("says_unavailable", next=200),
    Row("says_false"),
    Row("says_a_dict"),
    Row("says_bytes"),
    Row("says_another"),
    Row("never_returns", next=200),
    Row("will_not_be_cancelled"),
)


class Shared(NamedTuple):
    """Two served processes with the plugin, and the file with the plugin's mood."""

    clients: Clients
    mood: Path
    services: list[ServiceProcess]

    def become(self, mood: str) -> None:
        """Set the plugin's mood from its next lookup on."""
        new = self.mood.with_name("new")
        new.write_text(mood)
        new.replace(self.mood)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """The processes without and with stale answers."""
    folder = tmp_path_factory.mktemp("unruly")
    plugins = write_plugin(folder / "plugins", "unruly", PLUGIN)
    (folder / "others.yaml").write_text(fixture(AMY, CAROL))
    (folder / "mood").write_text("well")
    logs = "logging: {level: debug, ids: hash}"
    with ExitStack() as stack:
        services = []
        for name, text in {"forgetful": FORGETFUL, "remembering": REMEMBERING}.items():
            config = folder / f"{name}.yaml"
            config.write_text(text.replace("logging: {level: warning}", logs) + BACKENDS)
            services.append(stack.enter_context(running(config, path=plugins)))
        clients = Clients(*(CheckingClient(each.port, *PEOPLE) for each in services))
        yield Shared(clients, folder / "mood", services)


@pytest.fixture
def unruly(shared: Shared) -> Iterator[Shared]:
    """The same, and at the end the plugin is well."""
    yield shared
    shared.become("well")


@pytest.mark.parametrize("row", MOODS, ids=[row.mood for row in MOODS])
def test_bad_plugin_gives_503_or_the_stale_answer(row: Row, unruly: Shared) -> None:
    """No user is "not found" because of it; users of other backends are not affected."""
    unruly.clients.wait_until_well()
    unruly.become(row.mood)
    unruly.clients.wait_for_fault(row.next, row.known, row.absent)
    unruly.become("well")
    unruly.clients.wait_until_well()


def test_errors_of_a_plugin_are_logged_without_the_query(unruly: Shared) -> None:
    for mood in ("raises", "raises_a_group"):
        unruly.become(mood)
        for client in unruly.clients:
            client.wait_for(absent(503))
    texts = ("RuntimeError", "ExceptionGroup", '"subject":"')
    for service in unruly.services:
        eventually(lambda log=service.read_log: all(text in log() for text in texts))
        assert_no_secret(service.read_log())
