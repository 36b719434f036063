"""A PostgreSQL primary with a streaming replica, which is promoted when the primary is lost."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager

from support.databases.postgres_server import PostgresServer, empty_server, running_server


class Cluster:
    """A primary and its standby; after a failover they have changed places."""

    def __init__(self, primary: PostgresServer, standby: PostgresServer) -> None:
        self.primary, self.standby = primary, standby
        self.servers = (primary, standby)
        """Both, in an order that stays."""

    def join(self) -> None:
        """Make the standby a new copy of the primary, which follows it from now on."""
        self.standby.kill()
        shutil.rmtree(self.standby.data, ignore_errors=True)
        self.standby.copy_from(self.primary)
        self.standby.start()

    def wait_for_replay(self) -> None:
        self.standby.wait_for_replay(self.primary)

    def pause_replay(self) -> None:
        """Have the standby receive what is written, and not show it."""
        self.standby.run("SELECT pg_wal_replay_pause()")
        while self.standby.run("SELECT pg_get_wal_replay_pause_state()") != "paused":
            time.sleep(0.005)

    def resume_replay(self) -> None:
        self.standby.run("SELECT pg_wal_replay_resume()")

    def promote(self) -> None:
        """Make the standby the primary; the old one must not serve any more."""
        assert self.standby.run("SELECT pg_promote()") == "t"
        self.primary, self.standby = self.standby, self.primary

    def dsn(
        self, database: str, ports: tuple[int, int] | None = None, role: str = "primary"
    ) -> str:
        """Return the connection URI with both hosts, at these ports if others are in between."""
        first = self.servers[0]
        hosts = (f"127.0.0.1:{port}" for port in ports or (each.port for each in self.servers))
        uri = first.dsn(database, more=f"&target_session_attrs={role}")
        return uri.replace(f"127.0.0.1:{first.port}", ",".join(hosts))


@contextmanager
def running_cluster() -> Iterator[Cluster]:
    with running_server() as primary, running_standby(primary) as standby:
        yield Cluster(primary, standby)


@contextmanager
def running_standby(primary: PostgresServer) -> Iterator[PostgresServer]:
    with empty_server(primary.bin) as standby:
        standby.copy_from(primary)
        standby.start()
        yield standby
