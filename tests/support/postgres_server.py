"""A real PostgreSQL server on a free port, which the tests start, stop, freeze and restart."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tornado_idv import User

PASSWORD = "s3cret-canary"
ALICE = User("Free", "4000123412341234", "alice")
BOB = User("Pro", "0012345670", "bob", "https://elsewhere.example/bob")
USERS = """CREATE TABLE users (
    nickname text PRIMARY KEY, card_number text NOT NULL UNIQUE, plan text NOT NULL,
    profile_url text
);"""
_SETTINGS = """
fsync = off
synchronous_commit = off
full_page_writes = off
shared_buffers = 16MB
max_connections = 40
superuser_reserved_connections = 3
autovacuum = off
wal_level = replica
max_wal_senders = 4
"""
# Roles for tests of the service have a password; the tests themselves need none.
_HBA = """
local all all trust
host all postgres 127.0.0.1/32 trust
host replication postgres 127.0.0.1/32 trust
host all all 127.0.0.1/32 scram-sha-256
"""


def binaries() -> Path | None:
    """Return the folder of the newest installed server, if there is one."""
    folders = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name)
    )
    found = shutil.which("postgres")
    return folders[-1] if folders else Path(found).parent if found else None


def server_user() -> str | None:
    """Return the user to run the server as: it refuses to run as root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def command(*arguments: object) -> None:
    """Run one of the server's programs as its user; its output is in the error."""
    done = subprocess.run(
        [str(each) for each in arguments],
        user=server_user(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr + done.stdout


@dataclass
class PostgresServer:
    """One server over the files in ``data``."""

    bin: Path
    folder: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def initialise(self) -> None:
        """Create the files."""
        arguments = ["-D", self.data, "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8"]
        command(self.bin / "initdb", *arguments, "--locale=C.UTF-8")
        (self.data / "postgresql.conf").write_text(_SETTINGS)
        (self.data / "pg_hba.conf").write_text(_HBA)

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(self.bin / "postgres", "-D", self.data, "-p", str(self.port)),
                    *("-k", self.folder, "-c", "listen_addresses=127.0.0.1"),
                ],
                user=server_user(),
                stdout=log,
                stderr=log,
                cwd="/",
            )
        status = self.data / "postmaster.pid"
        deadline = time.monotonic() + 30
        while not (status.exists() and status.read_text().rstrip().endswith("ready")):
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.02)

    def stop(self) -> None:
        """Close every connection and end; what is not running is left as it is."""
        if self.process is not None:
            self.resume()
            self.process.send_signal(signal.SIGINT)
            self.process.wait(30)
            self.process = None

    def pause(self) -> None:
        """Freeze every process: connections stay open, and nothing responds."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def install_certificate(self, chain: bytes, key: bytes) -> None:
        """Turn TLS on."""
        for name, content in {"server.crt": chain, "server.key": key}.items():
            path = self.data / name
            path.write_bytes(content)
            path.chmod(0o600)
            user = server_user()
            if user is not None:
                shutil.chown(path, user)
        self.run("ALTER SYSTEM SET ssl = on")
        self.run("SELECT pg_reload_conf()")

    def run(self, script: str, database: str = "postgres") -> str:
        """Run SQL as the superuser, and return its rows, fields separated by |."""
        done = subprocess.run(
            [
                *(self.bin / "psql", "-h", self.folder, "-p", str(self.port), "-U", "postgres"),
                *("-d", database, "-qAtX", "-v", "ON_ERROR_STOP=1", "-f", "-"),
            ],
            input=script,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def dsn(self, database: str, user: str = "idv", more: str = "") -> str:
        login = user if user == "postgres" else f"{user}:{PASSWORD}"
        return f"postgresql://{login}@127.0.0.1:{self.port}/{database}?sslmode=disable{more}"

    def _signal(self, number: signal.Signals) -> None:
        if self.process is None:
            return
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for each in [pid, *map(int, children)]:
            os.kill(each, number)


@dataclass
class Database:
    """A database of its own on a server, with the role ``idv``."""

    server: PostgresServer
    name: str
    _table: str = ""

    @property
    def dsn(self) -> str:
        return self.server.dsn(self.name)

    def run(self, script: str) -> str:
        return self.server.run(script, self.name)

    def write(self, *users: User, table: str = USERS) -> None:
        """Replace everything by a table with these users; one that is there is only emptied."""
        values = ", ".join(
            "({})".format(
                ", ".join(
                    "NULL" if value is None else "'{}'".format(value.replace("'", "''"))
                    for value in (user.nickname, user.card_number, user.plan, user.profile_url)
                )
            )
            for user in users
        )
        insert = f"INSERT INTO users VALUES {values};" if users else ""
        if self._table == table:
            self.run(f"DELETE FROM users; {insert}")
        else:
            self.clear(f"{table} {insert}")
        self._table = table

    def clear(self, script: str = "") -> None:
        """Replace everything in the database by what the script creates."""
        self._table = ""
        self.run(
            "SET client_min_messages = warning; DROP SCHEMA public CASCADE; CREATE SCHEMA public;"
            "GRANT ALL ON SCHEMA public TO public;"
            "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO idv;" + script
        )

    def disconnect(self) -> None:
        """Close the service's sessions, and wait for their end."""
        self.run(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = 'idv'"
        )

    def connections(self) -> Sequence[int]:
        """Return the process ids of the service's sessions."""
        rows = self.run(
            "SELECT pid FROM pg_stat_activity "
            "WHERE usename = 'idv' AND datname = current_database()"
        )
        return [int(row) for row in rows.split()]


@contextmanager
def running_server() -> Iterator[PostgresServer]:
    """A new server in a folder of its own; skips the test where none is installed."""
    found = binaries()
    assert found is not None
    folder = Path(tempfile.mkdtemp(prefix="idv-postgres-"))
    server = PostgresServer(found, folder)
    user = server_user()
    if user is not None:
        shutil.chown(folder, user)
    folder.chmod(0o755)
    try:
        server.initialise()
        server.start()
        server.run(f"CREATE ROLE idv LOGIN PASSWORD '{PASSWORD}'")
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)


def create_database(server: PostgresServer, name: str) -> Database:
    server.run(f'CREATE DATABASE "{name}"')
    return Database(server, name)
