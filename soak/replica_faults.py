"""The faults of a PostgreSQL cluster and of a Redis server that several services share."""

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence

from soak.fault_catalogue import Inject, Scenario, injected, within
from soak.postgres import PostgresSource
from support.databases.postgres_cluster import Cluster
from support.databases.redis_server import RedisServer
from support.http.tcp_relay import Relay

_WITHOUT_REDIS = ("edit", "keys")
"""Kinds of changes that services notice without the shared cache."""


class PostgresFaults:
    """The faults of a PostgreSQL cluster. Each affects the current primary."""

    def __init__(self, source: PostgresSource, cluster: Cluster) -> None:
        self._source, self._cluster = source, cluster

    def scenarios(self) -> Iterator[Scenario]:
        faults: Mapping[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "stopped": (self._stop, self._start),
            "frozen": (self._freeze, self._resume),
            "filled": (self._exhaust, self._free),
            "failed over": (self._lose, self._promote),
            "frozen, failed over": (self._freeze, self._promote),
        }
        for name, (begin, end) in faults.items():
            yield Scenario(
                f"PostgreSQL {name}",
                self._source,
                injected(begin, end),
                blind=True,
                harms_file=False,
                clean_up=self._cluster.join if end == self._promote else None,
            )

    def _stop(self) -> None:
        self._cluster.primary.stop(signal.SIGQUIT)

    def _start(self) -> None:
        self._cluster.primary.start()

    def _freeze(self) -> None:
        self._cluster.wait_for_replay()
        self._cluster.primary.pause()

    def _resume(self) -> None:
        self._cluster.primary.resume()

    def _exhaust(self) -> None:
        """Disconnect the services, and permit them no connection."""
        self._limit_connections(0)
        self._source.database.disconnect()

    def _free(self) -> None:
        self._limit_connections(-1)

    def _limit_connections(self, limit: int) -> None:
        # Run in the database of the users, because its commits survive a crash.
        self._source.database.run(f"ALTER ROLE idv CONNECTION LIMIT {limit}")

    def _lose(self) -> None:
        self._cluster.wait_for_replay()
        self._cluster.primary.kill()

    def _promote(self) -> None:
        self._cluster.promote()
        self._source.database.server = self._cluster.primary


def of_redis(source: PostgresSource, server: RedisServer, relay: Relay) -> Iterator[Scenario]:
    """Yield the faults of the shared cache. They must not disturb any lookup.

    One service reaches the Redis server through ``relay``.
    """
    faults: Mapping[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "stopped": (server.stop, server.start),
        "frozen": (server.pause, server.resume),
        "filled": (
            lambda: server.run("CONFIG", "SET", "maxmemory", "1"),
            lambda: server.run("CONFIG", "SET", "maxmemory", "0"),
        ),
    }
    for name, (begin, end) in faults.items():
        yield _of_tier(f"Redis {name}", source, injected(begin, end))
    yield _of_tier("Redis cut off from one", source, within(relay.blocked))


def _of_tier(name: str, source: PostgresSource, inject: Inject) -> Scenario:
    return Scenario(
        name, source, inject, blind=False, harms_file=False, affects=(), followed=_WITHOUT_REDIS
    )


def cut_off(source: PostgresSource, relays: Sequence[Relay], port: int) -> Scenario:
    """Return a fault of the network: ``relays`` no longer connect ``port`` with PostgreSQL."""
    return Scenario(
        "PostgreSQL cut off from one",
        source,
        within(*(each.blocked for each in relays)),
        blind=False,
        harms_file=False,
        affects=[port],
        followed=("edit", "purge", "keys"),
    )
