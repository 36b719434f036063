"""Services over users and a shared cache in Redis behind Sentinels, during changes of the primary.

An operator writes the users to the primary that the Sentinels name. If a promotion loses users,
they still count as existing. Until they are written again, the response is 503, never 404.

Faults that no service can detect are left out (docs/explanation/cache.md):

- split brain of users: with two primaries, all writes go to the primary of a majority of Sentinels;
- a promotion without the last writes: if it loses a removal, the user is found until the fault
  ends.
"""

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import aiohttp

from soak.checker import Checker
from soak.failover_edits import LIMITS, LockedSource, edited, editing, settle
from soak.fault_catalogue import Inject, Scenario
from soak.harness import CONFIG, TIMES, Builder, Site
from soak.redis_partitions import SERVICE, Node, SentinelGroup, running_group
from soak.redis_users import RedisSource
from soak.reference import Reference
from soak.replica_changes import Caller, Edit

_TIMES = replace(TIMES, negative_ttl=0.0, lag=2.0)
"""The ``lag`` of 2 s: a service polls the Sentinels every second, and a purge takes up to 1 s."""
_CONFIG = """\
admin: {{port: 0}}
shared_cache: {{kind: redis, {access}, secret: {secret}, timeout: 250ms}}
{config}  - {{name: r, kind: redis, {access}, negative_ttl: 6s, {limits}}}
"""
_HOLD = 3.0
"""Minimum length of a fault, in seconds. After 2 s, answers of the old primary are wrong."""
_MISSING = 1.5
"""Seconds for which the users are declared incomplete, as during a reload."""
_PURGED = 2.0
"""Seconds to retry a purge. During a fault, it may not be delivered in this time."""


class GroupSource(LockedSource, RedisSource):
    """Users on the primary that the Sentinels name. After a write, a service purges the changes."""

    def __init__(self, group: SentinelGroup, reference: Reference) -> None:
        self.group = group
        self.admin: Sequence[str | None] = ()
        self._random = Random(0)
        super().__init__(group.primary.server, "r", reference)

    def make(self) -> None:
        super().make()
        self.server.run("SET", "ready", "1")

    def write(self) -> None:
        before = {**self._stored}
        super().write()
        both = before.keys() | self._stored.keys()
        self._purge([each for each in both if before.get(each) is not self._stored.get(each)])

    def write_again(self) -> None:
        """Write all users again, and remove all others from the server."""
        with self.lock:
            for key in self.server.run("KEYS", "user:*").split()[2::2]:
                nickname = key.decode().removeprefix("user:")
                if nickname not in self.people:
                    self.server.run("DEL", f"user:{nickname}")
            self._stored.clear()
            self.write()

    def _purge(self, nicknames: Sequence[str]) -> None:
        """Purge users at a random service. Retry until the purge is delivered, or for `_PURGED`."""
        if not self.admin:
            return
        what = {"nickname": f"@{nicknames[0]}"} if len(nicknames) == 1 else {"backend": "r"}
        url = f"{self._random.choice(self.admin)}/cache/purge"
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, json.dumps(what).encode(), headers)
        until = time.monotonic() + _PURGED
        while time.monotonic() < until:
            try:
                urllib.request.urlopen(request, timeout=10).close()
            except urllib.error.HTTPError as error:
                assert error.code == 503, error.code  # noqa: PT017 - purge_pending
            else:
                return


class GroupFaults:
    """The faults of a group of Redis servers and Sentinels."""

    def __init__(self, source: GroupSource, edit: Edit, caller: Caller) -> None:
        self._source, self._group, self._edit, self._caller = source, source.group, edit, caller
        self._ports = caller.ports
        self._random = Random(0)
        self._strangers = 0

    def scenarios(self) -> Iterator[Scenario]:
        """Yield each fault."""
        yield self._scenario("primary SIGSTOP until failed over", self._frozen)
        yield self._scenario("partition", self._partitioned)
        with_sentinel = partial(self._partitioned, self._group.sentinels[0])
        yield self._scenario("partition with a Sentinel", with_sentinel)
        yield self._scenario("primary killed", self._killed)
        yield self._scenario("primary restarted", self._restarted, follow=False)
        yield self._scenario("SENTINEL FAILOVER", self._commanded)
        for name, back in {"last writes lost": False, "last writes lost, and back": True}.items():
            yield self._scenario(name, partial(self._without_last_writes, back=back))
        yield self._scenario("Sentinels stopped", self._unattended, affects=())

    def _scenario(
        self,
        name: str,
        fault: Inject,
        *,
        affects: Collection[int] | None = None,
        follow: bool = True,
    ) -> Scenario:
        """Return a fault with edits of users. With ``follow``, all processes must notice them."""

        @asynccontextmanager
        async def healed() -> AsyncIterator[None]:
            async with fault():
                yield
            self._group.heal()
            await asyncio.to_thread(self._group.wait_for_replica)

        return edited(
            name,
            healed,
            self._edit,
            self._source,
            self._ports,
            affects=affects,
            followers=self._ports if follow else (),
            hold=_HOLD,
        )

    @asynccontextmanager
    async def _failover(self, *, is_lossless: bool = True) -> AsyncIterator[None]:
        """Block writes during a failover. At its end, the Sentinels name the other server."""
        await asyncio.to_thread(self._source.lock.acquire)
        try:
            if is_lossless:
                await asyncio.to_thread(self._group.synchronise)
            yield
            self._source.server = self._group.primary.server
        finally:
            self._source.lock.release()
        if is_lossless:
            await self._set_ready()

    async def _set_ready(self) -> None:
        """Declare the users complete, after each service has seen them incomplete.

        A service sees this only by a lookup of an absent user, after it followed the failover and
        while its circuit breaker is closed. The value of ``ready`` is the id of this run of the
        server, or a value that stays valid after a failover.
        """
        await settle(self._edit, self._ports)
        await asyncio.to_thread(self._source.server.run, "DEL", "ready")
        deadline = time.monotonic() + _MISSING
        while time.monotonic() < deadline:
            for port in self._ports:
                self._strangers += 1
                await self._caller.ask(port, f"stranger-{self._strangers}")
            await asyncio.sleep(0.1)
        if self._random.random() < 0.5:
            await asyncio.to_thread(self._source.set_ready)
        else:
            await asyncio.to_thread(self._source.server.run, "SET", "ready", "1")

    async def _named(self) -> None:
        await asyncio.to_thread(self._group.wait_for_failover)

    @asynccontextmanager
    async def _frozen(self) -> AsyncIterator[None]:
        old = self._group.primary.server
        try:
            async with self._failover():
                old.pause()
                await self._named()
        finally:
            old.resume()
        yield

    @asynccontextmanager
    async def _partitioned(self, *others: Node) -> AsyncIterator[None]:
        async with self._failover():
            self._group.split(self._group.primary, *others)
            await self._named()
        yield

    @asynccontextmanager
    async def _killed(self) -> AsyncIterator[None]:
        old = self._group.primary.server
        async with self._failover():
            old.stop()
            await self._named()
        yield
        await asyncio.to_thread(old.start)

    @asynccontextmanager
    async def _restarted(self) -> AsyncIterator[None]:
        server = self._group.primary.server
        with self._source.lock:
            server.stop()
            server.start()
        yield
        await asyncio.to_thread(server.wait_for, b"loading:0", "INFO", "persistence")
        await self._set_ready()

    @asynccontextmanager
    async def _commanded(self) -> AsyncIterator[None]:
        async with self._failover():
            await asyncio.to_thread(self._group.fail_over)
        yield

    @asynccontextmanager
    async def _without_last_writes(self, *, back: bool) -> AsyncIterator[None]:
        old = self._group.primary.server
        try:
            async with self._failover(is_lossless=False):
                self._group.cut_replication()
                # The lock is held already, so call the method that does not acquire it.
                await asyncio.to_thread(RedisSource.turn_over, self._source, self._random)
                old.pause()
                await self._named()
        finally:
            old.resume()
        if back:
            self._group.heal()
            await asyncio.to_thread(self._group.wait_for_replica)
            async with self._failover(is_lossless=False):
                await asyncio.to_thread(self._group.fail_over)
        yield
        await asyncio.to_thread(self._source.write_again)
        await self._set_ready()

    @asynccontextmanager
    async def _unattended(self) -> AsyncIterator[None]:
        for each in self._group.sentinels:
            each.server.stop()
        yield
        await asyncio.to_thread(self._group.start_sentinels)


@asynccontextmanager
async def running_redis_failover(
    folder: Path, max_seconds: float, only: Collection[str] = ()
) -> AsyncIterator[list[Site]]:
    """Run two services over one group, for at most ``max_seconds``. ``only`` selects scenarios."""
    async with AsyncExitStack() as stack:
        group = await stack.enter_async_context(running_group())
        reference = Reference()
        source = await asyncio.to_thread(GroupSource, group, reference)
        access = f"url: 'redis://any/0', sentinels: {json.dumps(group.urls)}, service: {SERVICE}"
        config = _CONFIG.format(access=access, secret="canary" * 8, config=CONFIG, limits=LIMITS)
        configs = {"redis-1": config, "redis-2": config}
        services = [*(await Builder(folder, max_seconds, stack).serve(**configs)).values()]
        source.admin = [each.admin_url for each in services]
        session = await stack.enter_async_context(aiohttp.ClientSession())
        caller = Caller(session, services)
        edit = Edit(source, caller)
        faults = GroupFaults(source, edit, caller).scenarios()
        scenarios = [each for each in faults if not only or each.name in only]
        checker = Checker(reference, _TIMES, "", strict=True)
        await stack.enter_async_context(editing(source))
        yield [Site("failover, Redis", caller.ports, checker, [source], scenarios, [edit])]
