"""A service over users in a Redis server, and the faults of the server."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from soak.checker import Checker
from soak.fault_catalogue import Scenario, injected
from soak.harness import BACKEND_LIMITS, CONFIG, TIMES, Builder, Site
from soak.people import Person
from soak.reference import Reference, Source
from support.databases.redis_server import RedisServer, running_server

_RIGHTS = ("~user:*", "~card:*", "~ready", "+hgetall", "+get", "+exists", "+info", "+select")
_LOGIN = ("on", ">secret-of-the-service")


class RedisSource(Source):
    """Users as hashes in Redis, written one by one as the backend's documentation recommends."""

    def __init__(self, server: RedisServer, letter: str, reference: Reference) -> None:
        self.server = server
        self._stored: dict[str, Person] = {}
        super().__init__(letter, reference)

    def make(self) -> None:
        self.server.run("FLUSHALL")
        self._stored.clear()
        self.write()
        self.set_ready()

    def set_ready(self) -> None:
        """Declare the users complete, by a value that is valid only on this server."""
        self.server.run("SET", "ready", self.server.run_id)

    def write(self) -> None:
        for nickname in [*self._stored]:
            if nickname not in self.people:
                person = self._stored.pop(nickname)
                self.server.run("DEL", f"card:{person.card}")
                self.server.run("DEL", f"user:{nickname}")
        for nickname, person in self.people.items():
            if self._stored.get(nickname) is not person:
                fields = ("nickname", nickname, "card_number", person.card, "plan", person.plan)
                self.server.run("HSET", f"user:{nickname}", *fields)
                self.server.run("SET", f"card:{person.card}", nickname)
                self._stored[nickname] = person


def of_redis(source: RedisSource) -> Iterator[Scenario]:
    """Yield the faults of a server, its data and its permissions."""
    server = source.server
    yield Scenario("stopped", source, injected(server.stop, server.start), blind=True)
    pausing = injected(server.pause, server.resume)
    yield Scenario("SIGSTOP", source, pausing, blind=True, harms_file=False)
    restart = injected(lambda: _restart(server))
    yield Scenario("restarted without its data", source, restart, blind=True)
    yield Scenario("emptied", source, injected(lambda: server.run("FLUSHALL")), blind=True)
    old = injected(lambda: _restart_from_old_snapshot(source))
    yield Scenario("restarted from an old snapshot", source, old, blind=True)
    give = _setting_rights(server, *_RIGHTS)
    lost = {"no rights": ("-@all",), "no rights to these keys": ("resetkeys", "~user:*", "~ready")}
    for name, rights in lost.items():
        inject = injected(_setting_rights(server, *rights), give)
        yield Scenario(name, source, inject, blind=name == "no rights", harms_file=False)
    moved = injected(lambda: server.run("SWAPDB", "0", "1"), lambda: server.run("SWAPDB", "0", "1"))
    yield Scenario("exchanged for an empty database", source, moved, blind=True, harms_file=False)


def _setting_rights(server: RedisServer, *rights: str) -> Callable[[], object]:
    return lambda: server.run("ACL", "SETUSER", "idv", *rights)


def _restart(server: RedisServer) -> None:
    server.stop()
    server.start()


def _restart_from_old_snapshot(source: RedisSource) -> None:
    """Add three users, and restart with an older snapshot, which contains the key `ready`."""
    source.server.run("SAVE")
    for _ in range(3):
        source.add()
    _restart(source.server)
    (source.server.folder / "dump.rdb").unlink()


@asynccontextmanager
async def running_redis_sites(folder: Path, max_seconds: float) -> AsyncIterator[list[Site]]:
    """Run a service over the users of a Redis server, for at most ``max_seconds``."""
    async with AsyncExitStack() as stack:
        server = stack.enter_context(running_server("--user", "idv", *_LOGIN, *_RIGHTS))
        reference = Reference()
        source = RedisSource(server, "r", reference)
        url = f"redis://idv:secret-of-the-service@127.0.0.1:{server.port}/0"
        backend = (
            f"  - {{name: r, kind: redis, url: '{url}', {BACKEND_LIMITS},"
            f" cache_ttl: {TIMES.ttl * 1000:.0f}ms}}\n"
        )
        services = await Builder(folder, max_seconds, stack).serve(redis=CONFIG + backend)
        ports = [service.port for service in services.values()]
        scenarios = [*of_redis(source)]
        yield [Site("redis", ports, Checker(reference, TIMES, "r"), [source], scenarios)]
