"""The commands of the tutorial on three replicas move a service there, and no request fails.

They run as written, with PostgreSQL, Redis and nginx, on other ports and with few users.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.databases import redis_server, sqlite_databases
from support.databases.key_stores import add, make_store, record
from support.databases.postgres_server import PostgresServer
from support.databases.sqlite_databases import ALICE, BOB
from support.http.load import Load, loaded
from support.pages import ROOT, code_blocks, page
from support.processes.ports import free_port, listens
from support.processes.process import eventually
from support.processes.proxies import find_tool, nginx_command, running_program
from support.processes.shell_commands import ShellCommands, shell_commands
from tornado_idv.features.users.commands import generated_users
from tornado_idv.keys.token import issue

pytestmark = [pytest.mark.slow, pytest.mark.ci]

PAGE = page("docs/tutorial/three-replicas.md")
SITE = "/etc/nginx/sites-available/tornado-idv.conf"
HOSTS = ("127.0.0.11", "127.0.0.12", "127.0.0.13")
USERS = 300


@dataclass
class Walk:
    """The page, step by step."""

    folder: Path
    replaced: dict[str, str]
    env: dict[str, str]
    commands: ShellCommands

    def blocks(self, heading: str, language: str = "sh") -> list[str]:
        """Return the code blocks of a section, with ports and paths of this test."""
        text = PAGE.partition(heading)[2].partition("\n## ")[0]
        return code_blocks(self.local(text), language)

    def local(self, text: str) -> str:
        for old, new in self.replaced.items():
            text = text.replace(old, new)
        return text

    def run(self, *blocks: str) -> str:
        """Run blocks as one script; return its output."""
        done = subprocess.run(
            [find_tool("bash"), "-euc", "\n".join(blocks)],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def status(self, port: int, token: str, host: str = "127.0.0.1") -> int:
        return int(
            self.run(
                "curl -sS -o /dev/null -w '%{http_code}' -H 'Content-Type: application/json' "
                f'-H "Authorization: Bearer $(cat {token}.token)" -d \'{{"input": "@alice"}}\' '
                f"http://{host}:{port}/api/v1/identify/url"
            )
        )


@contextmanager
def nginx(walk: Walk, port: int) -> Iterator[None]:
    """nginx with the site of deploy/, without TLS, and the command that reloads it."""
    folder = walk.folder
    site = page("deploy/nginx/tornado-idv.conf")
    site = walk.local(site.replace("listen 443 ssl", f"listen 127.0.0.1:{port}"))
    command = nginx_command(site, folder, "worker_processes 1")
    (folder / "nginx").write_text(f'#!/bin/sh\nexec {" ".join(command)} "$@"\n')
    (folder / "nginx").chmod(0o755)
    with running_program(command, port, folder / "nginx.log"):
        yield


@pytest.fixture
def walk(postgres_server: PostgresServer, tmp_path: Path) -> Iterator[Walk]:
    """The folder of the old service's configuration, and the servers that the page takes."""
    for tool in ("nginx", "curl", "openssl"):
        find_tool(tool)
    port, admin = free_port(), free_port()
    with redis_server.running_server() as redis, shell_commands(tmp_path) as commands:
        replaced = {
            "5432/": f"{postgres_server.port}/",
            "6379/": f"{redis.port}/",
            "8080": str(port),
            "8081": str(admin),
            SITE: str(tmp_path / "site.conf"),
            "sleep 1": "sleep 0.3",
            # A busy machine is no failure.
            "health_path:": "request_timeout: 20s, health_path:",
            "kind: postgres,": "kind: postgres, timeout: 20s,",
            "kind: sqlite,": "kind: sqlite, timeout: 20s,",
        }
        # Peer authentication would allow the role postgres to the system's user of that name alone.
        (tmp_path / "sudo").write_text(
            '#!/bin/sh\n[ "$1 $2" = "--user postgres" ] || exit 1\n'
            'shift 2; PGUSER=postgres exec "$@"\n'
        )
        (tmp_path / "sudo").chmod(0o755)
        path = os.pathsep.join([str(tmp_path), str(postgres_server.bin), os.environ["PATH"]])
        login = {
            "PGUSER": "nobody",
            "PGHOST": str(postgres_server.folder),
            "PGPORT": str(postgres_server.port),
        }
        try:
            yield Walk(tmp_path, replaced, {**os.environ, **login, "PATH": path}, commands)
        finally:
            postgres_server.run("DROP DATABASE IF EXISTS idv WITH (FORCE)")
            postgres_server.run("DROP ROLE IF EXISTS idv_admin, idv_service")


def start_old_service(walk: Walk) -> int:
    """Serve users and keys from files; return the port."""
    config, *_ = walk.blocks("begins with this", "yaml")
    (walk.folder / "config.yaml").write_text(config)
    sqlite_databases.write(walk.folder / "users.db", ALICE, *generated_users(USERS, seed=1))
    tokens = {"shop": issue("shop"), "stolen": issue("stolen")}
    for name, token in tokens.items():
        (walk.folder / f"{name}.token").write_text(token)
    make_store(walk.folder / "keys.db")
    add(
        walk.folder / "keys.db",
        record("shop", tokens["shop"]),
        record("stolen", tokens["stolen"], revoked=1.0),
    )
    walk.run("tornado-idv serve > old.log 2>&1 &")
    port = int(walk.replaced["8080"])
    eventually(lambda: listens(port))
    return port


def request(token: str) -> bytes:
    body = b'{"input": "@alice"}'
    head = (
        "POST /api/v1/identify/url HTTP/1.1\r\nHost: idv.example\r\nConnection: close\r\n"
        f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def test_service_moves_to_three_replicas_without_a_failed_request(walk: Walk) -> None:
    port, front = start_old_service(walk), free_port()
    token = (walk.folder / "shop.token").read_text().strip()
    with nginx(walk, front), loaded(front, request(token), clients=1, pause=0.02) as load:
        prepare(walk)
        start_replicas(walk, port)
        change(walk)
        switch(walk, load, front)
        assert walk.commands.stop("serve", "") == 0
        restart(walk, HOSTS[0], port)
        load.wait_for(20)
        assert walk.status(front, "later") == 200
    assert {*load.results} == {"ok"}
    check_roles(walk)


def test_step_that_fails_stops_the_rest_of_the_switch(tmp_path: Path) -> None:
    """In a shell without ``set -e``, as an operator has it."""
    site = {SITE: str(tmp_path / "site.conf")}
    walk = Walk(tmp_path, site, {**os.environ}, ShellCommands())
    copy, reload = walk.blocks("## 5. ")
    (walk.folder / "site.conf").write_text("")
    commands = "set +e; tornado-idv() { echo $1; false; }; nginx() { echo $1; false; };"
    assert walk.run(commands, copy, reload, "true") == "users\n-t\n"
    first_sed_fails = 'sed() { [ "$failed" ] || { failed=1; echo sed; false; }; };'
    assert walk.run(f"{commands} failed=; {first_sed_fails}", reload, "true") == "sed\n"


def test_no_secret_is_an_argument_of_a_program() -> None:
    """Other users of the machine can read them."""
    for each in sorted((ROOT / "docs").rglob("*.md")):
        for line in re.findall(r".*\$\(cat .*", each.read_text(encoding="utf-8")):
            assert line.lstrip().startswith("printf ")


def prepare(walk: Walk) -> None:
    """Steps 1 to 3: the database, the configurations, users and keys."""
    walk.run(*walk.blocks("## 1. "))
    replica, admin = walk.blocks("## 2. ", "yaml")
    (walk.folder / "replica.yaml").write_text(replica)
    (walk.folder / "admin.yaml").write_text(admin)
    said = walk.run(*walk.blocks("## 3. "))
    assert f"Imported {USERS + 1} users into new: {USERS + 1} added" in said
    assert "Imported 2 keys." in said


def start_replicas(walk: Walk, port: int) -> None:
    """Step 4: they find users and keys."""
    said = walk.run(*walk.blocks("## 4. "))
    assert said.count("The service is ready.") == said.count(ALICE.card_number) == len(HOSTS)
    assert walk.status(port, "stolen", HOSTS[0]) == 401


def change(walk: Walk) -> None:
    """Users and keys change after the first copy."""
    walk.run("tornado-idv keys issue later > later.token")
    walk.run("tornado-idv keys rotate shop > rotated.token")
    sqlite_databases.insert(walk.folder / "users.db", BOB)


def switch(walk: Walk, load: Load, front: int) -> None:
    """Step 5: the replicas serve all requests."""
    copy, reload = walk.blocks("## 5. ")
    said = walk.run(copy)
    assert "differs: 0" in said
    assert "Imported 1 key, updated 1; 1 were equal." in said
    walk.run(reload)
    load.wait_for(20)
    assert walk.status(front, "later") == walk.status(front, "rotated") == 200


def restart(walk: Walk, host: str, port: int) -> None:
    """As for a new version, while requests come in."""
    arguments = ("serve", "--config", "replica.yaml")
    assert walk.commands.stop(*arguments, host) == 0
    walk.run(f"IDV_HOST={host} tornado-idv {' '.join(arguments)} > {host}.log 2>&1 &")
    eventually(lambda: listens(port, host))
    assert walk.status(port, "shop", host) == 200


def check_roles(walk: Walk) -> None:
    """The replica that stopped has written when keys were used, and can write nothing else."""
    psql = 'psql "$(cat service.dsn)" -At -c'
    assert walk.run(f'{psql} "SELECT id FROM idv_keys.last_used ORDER BY 1"').endswith("shop\n")
    for change in ("DELETE FROM users", "DELETE FROM idv_keys.keys"):
        assert "permission denied" in walk.run(f'{psql} "{change}" || true')
