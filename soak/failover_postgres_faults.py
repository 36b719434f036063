"""The users in a PostgreSQL cluster, and the faults of its primary and its standby."""

import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from soak.failover_edits import LockedSource, edited
from soak.fault_catalogue import Scenario, injected
from soak.people import Person
from soak.postgres import PostgresSource
from soak.reference import Reference
from soak.replica_changes import Edit
from support.databases.postgres_cluster import Cluster
from support.databases.postgres_server import create_database

MAX_LAG = 1.0
"""Maximum lag of a standby whose "not found" is trusted, in seconds."""
_DELAY = 0.4
"""Lag of a standby during "replay delayed", in seconds. It is permitted: less than `MAX_LAG`."""
_BEHIND = MAX_LAG + 2
"""Length of a fault with a lag, in seconds. In the last second, a standby's answer is wrong."""


class ClusterSource(LockedSource, PostgresSource):
    """Users in a cluster. A write only changes the rows that differ, and notifies the services."""

    def __init__(self, cluster: Cluster, reference: Reference) -> None:
        self.cluster = cluster
        self._stored: dict[str, Person] = {}
        self._probes = 0
        super().__init__(create_database(cluster.primary, "users"), "p", reference)

    def make(self) -> None:
        super().make()
        self._stored = {**self.people}

    def write(self) -> None:
        removed = self._stored.keys() - self.people.keys()
        statements = [f"DELETE FROM users WHERE nickname = '{each}';" for each in removed]
        for person in self.people.values():
            if self._stored.get(person.nickname) is not person:
                row = f"('{person.nickname}', '{person.card}', '{person.plan}', NULL)"
                conflict = "ON CONFLICT (nickname) DO UPDATE SET plan = excluded.plan;"
                statements.append(f"INSERT INTO users VALUES {row} {conflict}")
        self._commit("".join(statements))
        self._stored = {**self.people}

    @asynccontextmanager
    async def without_replay(self) -> AsyncIterator[str]:
        """Yield the nickname of a user who exists only on the primary, since replay is paused."""
        with self.lock:
            self._probes += 1
            nickname = f"probe-{self._probes}"
            self.cluster.pause_replay()
            self._commit(f"INSERT INTO users VALUES ('{nickname}', '9{self._probes:08}', 'Free');")
        try:
            yield nickname
        finally:
            self.cluster.resume_replay()


class ClusterFaults:
    """The faults of a cluster. The processes at the ports ``direct`` prefer the primary."""

    def __init__(self, source: ClusterSource, edit: Edit, direct: Sequence[int]) -> None:
        self._source, self._cluster, self._edit = source, source.cluster, edit
        self._direct = direct
        self._conninfo = ""

    def scenarios(self, ports: Collection[int]) -> Iterator[Scenario]:
        """Yield each fault, with its effects on the processes at ``ports``."""
        behind = [port for port in ports if port not in self._direct]
        lags = {
            "replay paused": (self._cluster.pause_replay, self._cluster.resume_replay),
            "replication cut": (self._cut, self._connect),
        }
        for name, (begin, end) in lags.items():
            yield self._scenario(
                name, begin, end, affects=behind, followers=self._direct, hold=_BEHIND
            )
            yield self._scenario(
                f"{name}, primary restarted",
                partial(self._restart, after=begin),
                end,
                followers=self._direct,
                hold=_BEHIND,
            )
        yield self._scenario(
            "replay delayed",
            lambda: self._set(f"recovery_min_apply_delay = '{_DELAY}s'"),
            lambda: self._set("recovery_min_apply_delay = 0"),
            affects=behind,
            followers=ports,
            lag=_DELAY,
            hold=_BEHIND,
        )
        yield self._scenario(
            "many writes", self._write_much, affects=behind, followers=self._direct
        )
        yield self._scenario(
            "standby restarted", self._restart_standby, affects=behind, followers=self._direct
        )
        yield self._scenario("primary restarted", self._restart, followers=self._direct)
        yield self._scenario("primary stopped", self._stop, self._start)
        yield self._scenario("primary SIGSTOP", self._freeze, self._unfreeze)
        yield self._scenario(
            "failed over", self._fail_over, self._cluster.join, followers=self._direct
        )

    def _scenario(
        self,
        name: str,
        begin: Callable[[], object],
        end: Callable[[], object] | None = None,
        *,
        followers: Collection[int] = (),
        **more: Any,
    ) -> Scenario:
        """Return a fault. If there are ``followers``, users are edited during the fault."""
        return edited(
            name,
            injected(begin, end),
            self._edit,
            self._source,
            self._direct if followers else (),
            followers=followers,
            **more,
        )

    def _set(self, setting: str) -> None:
        self._cluster.standby.run(f"ALTER SYSTEM SET {setting}")
        self._cluster.standby.run("SELECT pg_reload_conf()")

    def _cut(self) -> None:
        self._conninfo = self._cluster.standby.run("SHOW primary_conninfo")
        self._set("primary_conninfo = ''")
        while self._cluster.standby.run("SELECT count(*) FROM pg_stat_wal_receiver") != "0":
            time.sleep(0.01)

    def _connect(self) -> None:
        self._set(f"primary_conninfo = '{self._conninfo}'")

    def _write_much(self) -> None:
        primary, until = self._cluster.primary, time.monotonic() + 2
        primary.run("CREATE TABLE ballast (number int)")
        while time.monotonic() < until:
            primary.run("INSERT INTO ballast SELECT generate_series(1, 20000)")
        primary.run("DROP TABLE ballast")

    def _restart_standby(self) -> None:
        self._cluster.standby.stop()
        self._cluster.standby.start()

    def _restart(self, after: Callable[[], object] | None = None) -> None:
        if after is not None:
            after()
        with self._source.lock:
            self._cluster.primary.stop()
            self._cluster.primary.start()

    def _stop(self) -> None:
        self._source.lock.acquire()
        self._cluster.primary.stop()

    def _start(self) -> None:
        self._cluster.primary.start()
        self._source.lock.release()

    def _freeze(self) -> None:
        self._source.lock.acquire()
        self._cluster.primary.pause()

    def _unfreeze(self) -> None:
        self._cluster.primary.resume()
        self._source.lock.release()

    def _fail_over(self) -> None:
        with self._source.lock:
            self._cluster.wait_for_replay()
            self._cluster.primary.kill()
            self._cluster.promote()
            self._source.database.server = self._cluster.primary
