"""A real PostgreSQL server on a free port, which the tests start, stop, freeze and restart."""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support.databases.kept_files import make_or_copy
from support.databases.user_lists import cells, insert_statement
from support.processes.ports import free_port
from support.processes.process import children
from support.processes.proxies import find_tool, not_installed
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
search_path = '"$user", public, extensions'
client_min_messages = warning
"""
_EXTENSIONS = """
CREATE SCHEMA extensions;
GRANT USAGE ON SCHEMA extensions TO public;
CREATE EXTENSION citext SCHEMA extensions;
"""
_END_OF_SCRIPT = "-- end of the script --"
# Roles for tests of the service have a password; the tests themselves need none.
_HBA = """
local all all trust
host all postgres 127.0.0.1/32 trust
host replication postgres 127.0.0.1/32 trust
host all all 127.0.0.1/32 scram-sha-256
"""


def binaries() -> Path | None:
    """Return the folder in ``POSTGRES_BIN``, or that of the newest installed server, if any."""
    chosen = os.environ.get("POSTGRES_BIN")
    if chosen:
        return Path(chosen)
    servers = Path("/usr/lib/postgresql").glob("*/bin/postgres")  # clients are there, too
    folders = sorted((each.parent for each in servers), key=lambda path: int(path.parent.name))
    found = shutil.which("postgres")
    return folders[-1] if folders else Path(found).parent if found else None


def server_user() -> str | None:
    """Return the user to run the server as: it refuses to run as root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def give_to_server(path: Path) -> None:
    user = server_user()
    if user is not None:
        shutil.chown(path, user)


def command(*arguments: object, user: str | None) -> None:
    """Run one of the server's programs as this user; its output is in the error."""
    done = subprocess.run(
        [str(each) for each in arguments],
        user=user,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr + done.stdout


def verifier(password: str) -> str:
    """Return a SCRAM verifier of one iteration: each login with the usual 4096 takes 15 ms."""
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), b"salt", 1)
    client, server = (
        hmac.digest(salted, b"%s Key" % each, "sha256") for each in (b"Client", b"Server")
    )
    parts = (b"salt", hashlib.sha256(client).digest(), server)
    salt, stored, server_key = (base64.b64encode(each).decode() for each in parts)
    return f"SCRAM-SHA-256$1:{salt}${stored}:{server_key}"


class Psql:
    """A session of psql, which is opened when it is needed, and again after an error.

    A new process for each script takes longer than the script.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = [*command, "-qAtX", "-v", "ON_ERROR_STOP=1", "-f", "-"]
        self._process: subprocess.Popen[str] | None = None

    def run(self, script: str) -> str:
        """Run SQL and return its rows, fields separated by |; an error ends the session."""
        if self._process is None:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                self._command, stdin=pipe, stdout=pipe, stderr=pipe, text=True
            )
        process = self._process
        process.stdin.write(f"{script}\n;\n\\echo {_END_OF_SCRIPT}\n")
        process.stdin.flush()
        rows: list[str] = []
        for line in process.stdout:
            if line.rstrip() == _END_OF_SCRIPT:
                return "".join(rows).strip()
            rows.append(line)
        raise AssertionError(self.close())

    def close(self) -> str:
        if self._process is None:
            return ""
        _, errors = self._process.communicate(timeout=30)
        self._process = None
        return errors


@dataclass
class PostgresServer:
    """One server over the files in ``data``."""

    bin: Path
    folder: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    _sessions: dict[str, Psql] = field(default_factory=dict)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def initialise(self) -> None:
        """Create the files, or copy those of another server."""
        made_of = (self.bin, server_user(), _SETTINGS, _HBA, _EXTENSIONS, PASSWORD)
        make_or_copy(self.data, made_of, self._create)

    def _create(self) -> None:
        arguments = ["-D", self.data, "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8"]
        command(
            self.bin / "initdb",
            *arguments,
            "--locale=C.UTF-8",
            "--wal-segsize=1",
            user=server_user(),
        )
        (self.data / "postgresql.conf").write_text(_SETTINGS)
        (self.data / "pg_hba.conf").write_text(_HBA)
        self.start()
        self.run(f"CREATE ROLE idv LOGIN PASSWORD '{verifier(PASSWORD)}'")
        self.run(_EXTENSIONS, "template1")
        self.stop()

    def start(self) -> None:
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

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Close every connection and end; what is not running is left as it is.

        By default cleanly; with SIGQUIT as after a crash.
        """
        if self.process is not None:
            self.resume()
            while self._sessions:
                self._sessions.popitem()[1].close()
            self.process.send_signal(how)
            self.process.wait(30)
            self.process = None

    def kill(self) -> None:
        """End every process at once, frozen ones too, as the loss of a machine does."""
        if self.process is None:
            return
        self.pause()  # so that none of them acts on the end of another
        # The segment that a killed server would leave behind is line 7.
        segment = (self.data / "postmaster.pid").read_text().splitlines()[6].split()[1]
        for pid in (*children(self.process.pid), self.process.pid):
            os.kill(pid, signal.SIGKILL)
        self.process.wait(30)
        self.process = None
        while self._sessions:
            self._sessions.popitem()[1].close()
        command("ipcrm", "-m", segment, user=None)

    def pause(self) -> None:
        """Freeze every process: connections stay open, and nothing responds."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def copy_from(self, primary: PostgresServer) -> None:
        """Become a standby of a running server, which has ``pg_basebackup`` only in some cases."""
        primary.run("SELECT pg_backup_start('standby', true)")
        command("cp", "-a", primary.data, self.data, user=None)
        label = primary.run("SELECT labelfile FROM pg_backup_stop(false)")
        (self.data / "postmaster.pid").unlink()
        files = {
            "backup_label": f"{label}\n",
            "standby.signal": "",
            "postgresql.auto.conf": "primary_conninfo = "
            f"'host=127.0.0.1 port={primary.port} user=postgres'\n",
        }
        for name, text in files.items():
            path = self.data / name
            path.write_text(text)
            give_to_server(path)

    def wait_for_replay(self, primary: PostgresServer) -> None:
        """Wait until this standby has all that was committed at its primary."""
        rows = primary.run(
            "BEGIN; SET LOCAL synchronous_commit = on;"
            "SELECT pg_logical_emit_message(true, 'idv', ''); COMMIT;"  # flushes what was before
            "SELECT pg_current_wal_flush_lsn()"
        )
        replayed = f"SELECT pg_last_wal_replay_lsn() >= '{rows.splitlines()[-1]}'"
        deadline = time.monotonic() + 30
        while self.run(replayed) != "t":
            assert time.monotonic() < deadline, self.log
            time.sleep(0.01)

    def install_certificate(self, chain: bytes, key: bytes) -> None:
        for name, content in {"server.crt": chain, "server.key": key}.items():
            path = self.data / name
            path.write_bytes(content)
            path.chmod(0o600)
            give_to_server(path)
        self.run("ALTER SYSTEM SET ssl = on")
        self.run("SELECT pg_reload_conf()")

    def run(self, script: str, database: str = "postgres") -> str:
        """Run SQL as the superuser, and return its rows, fields separated by |."""
        if database not in self._sessions:
            address = ("-h", str(self.folder), "-p", str(self.port))
            login = ("-U", "postgres", "-d", database)
            psql = find_tool("psql", self.bin)  # not with every server
            self._sessions[database] = Psql([psql, *address, *login])
        return self._sessions[database].run(script)

    def end_session(self, database: str) -> None:
        if database in self._sessions:
            self._sessions.pop(database).close()

    def dsn(self, database: str, user: str = "idv", more: str = "") -> str:
        login = user if user == "postgres" else f"{user}:{PASSWORD}"
        return f"postgresql://{login}@127.0.0.1:{self.port}/{database}?sslmode=disable{more}"

    def _signal(self, number: signal.Signals) -> None:
        if self.process is None:
            return
        os.kill(self.process.pid, number)  # first, so that it starts no other process meanwhile
        for child in children(self.process.pid):
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(child, number)


_numbers = itertools.count()


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

    def close(self) -> None:
        self.server.end_session(self.name)

    def write(self, *users: User, table: str = USERS) -> None:
        """Replace everything by a table with these users; one that is there is only emptied."""
        insert = insert_statement(*map(cells, users))
        if self._table == table:
            self.run(f"DELETE FROM users; {insert}")
        else:
            self.clear(f"{table} {insert}")
        self._table = table

    def clear(self, script: str = "") -> None:
        """Replace everything in the database by what the script creates."""
        self._table = ""
        self.run(
            "DROP SCHEMA public CASCADE; CREATE SCHEMA public;"
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

    def count_queries(self, condition: str) -> int:
        """Return the number of the service's sessions that run, or last ran, such a query."""
        # By another session: in a transaction, that of this database would see no changes.
        rows = self.server.run(
            "SELECT count(*) FROM pg_stat_activity "
            f"WHERE usename = 'idv' AND datname = '{self.name}' AND {condition}"
        )
        return int(rows)


@contextmanager
def empty_server(programs: Path) -> Iterator[PostgresServer]:
    """A server without files, in a folder of its own; it is stopped and deleted at the end."""
    folder = Path(tempfile.mkdtemp(prefix="idv-postgres-"))
    give_to_server(folder)
    folder.chmod(0o755)
    server = PostgresServer(programs, folder)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)


@contextmanager
def running_server() -> Iterator[PostgresServer]:
    """A new server in a folder of its own; skips the test where none is installed."""
    found = binaries()
    if found is None:
        pytest.skip(not_installed("PostgreSQL"))
    with empty_server(found) as server:
        server.initialise()
        server.start()
        yield server


@contextmanager
def stopped(database: Database) -> Iterator[None]:
    database.server.stop()
    try:
        yield
    finally:
        database.server.start()


@contextmanager
def hanging(database: Database) -> Iterator[None]:
    database.server.pause()
    try:
        yield
    finally:
        database.server.resume()


def create_database(server: PostgresServer, name: str) -> Database:
    """Create a database, also where tests in another order had one of this name before."""
    name = f"{name}_{next(_numbers)}"
    server.run(f'CREATE DATABASE "{name}"')
    return Database(server, name)


@contextmanager
def running_copy(server: PostgresServer) -> Iterator[PostgresServer]:
    """Run a server over a copy of the files of this one."""
    with empty_server(server.bin) as copy:
        server.stop()
        command("cp", "-a", server.data, copy.data, user=None)
        server.start()
        copy.start()
        yield copy
