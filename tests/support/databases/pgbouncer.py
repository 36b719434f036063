"""PgBouncer in front of a PostgreSQL server."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.databases.postgres_server import PASSWORD, PostgresServer, server_user
from support.processes.ports import free_port, wait_until_listens
from support.processes.proxies import SEARCH_PATH, find_tool

PGBOUNCER = shutil.which("pgbouncer", path=SEARCH_PATH)


@contextmanager
def running_pooler(server: PostgresServer, settings: str = "") -> Iterator[int]:
    """Run PgBouncer in transaction mode, with more servers than one client needs; yield its port.

    ``settings`` are further lines of its configuration.
    """
    program = find_tool("pgbouncer")
    folder, port = Path(tempfile.mkdtemp(prefix="idv-pgbouncer-")), free_port()
    folder.chmod(0o755)
    (folder / "users").write_text(f'"idv" "{PASSWORD}"\n')
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\n* = host=127.0.0.1 port={server.port}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        "pool_mode = transaction\nserver_round_robin = 1\nmin_pool_size = 4\n"
        f"auth_type = plain\nauth_file = {folder}/users\n{settings}\n"
    )
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [program, "-q", folder / "pgbouncer.ini"], user=server_user(), stdout=log, stderr=log
        )
    try:
        wait_until_listens(process, port)
        yield port
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(folder)
