"""The commands of the tutorial on three replicas move a service there, and no request fails.

They run as written, with PostgreSQL, Redis and nginx, on other ports and with few users.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs_tutorial import Walk, walk

from support.databases import redis_server, sqlite_databases
from support.databases.key_stores import add, make_store, record
from support.databases.postgres_server import PostgresServer
from support.databases.sqlite_databases import ALICE, BOB
from support.http.load import loaded
from support.pages import ROOT, code_blocks, page, section
from support.processes.ports import free_port, listens
from support.processes.process import eventually
from support.processes.proxies import find_tool, nginx_command, running_program
from support.processes.service import lookup_request
from tornado_idv.features.users.commands import generated_users
from tornado_idv.keys.token import issue

pytestmark = [pytest.mark.slow, pytest.mark.ci]

PAGE = page("docs/tutorial/three-replicas.md")
SITE = "/etc/nginx/sites-available/tornado-idv.conf"
HOSTS = ("127.0.0.11", "127.0.0.12", "127.0.0.13")
USERS = 300


@pytest.fixture
def tutorial(postgres_server: PostgresServer, tmp_path: Path) -> Iterator[Walk]:
    """The page, with the servers that it takes."""
    for tool in ("nginx", "openssl"):
        find_tool(tool)
    tools = tmp_path / "tools"
    tools.mkdir()
    # Peer authentication would allow the role postgres to the system's user of that name alone.
    (tools / "sudo").write_text(
        '#!/bin/sh\n[ "$1 $2" = "--user postgres" ] || exit 1\nshift 2; PGUSER=postgres exec "$@"\n'
    )
    (tools / "sudo").chmod(0o755)
    with redis_server.running_server() as redis:
        text = PAGE
        for old, new in {
            "5432/": f"{postgres_server.port}/",
            "6379/": f"{redis.port}/",
            SITE: str(tmp_path / "site.conf"),
            "sleep 1": "sleep 0.3",
            # A busy machine is no failure.
            "health_path:": "request_timeout: 20s, health_path:",
            "kind: postgres,": "kind: postgres, timeout: 20s,",
            "kind: sqlite,": "kind: sqlite, timeout: 20s,",
        }.items():
            text = text.replace(old, new)
        login = f"PGUSER=other PGHOST={postgres_server.folder} PGPORT={postgres_server.port}"
        try:
            with walk(text, tmp_path, str(tools), str(postgres_server.bin)) as page:
                run(page, f"cd {tmp_path}; export {login}")
                yield page
        finally:
            postgres_server.run("DROP DATABASE IF EXISTS idv WITH (FORCE)")
            postgres_server.run("DROP ROLE IF EXISTS idv_admin, idv_service")


def run(page: Walk, command: str) -> str:
    code, output = page.shell.run(command)
    assert code == 0, f"{command}\n{output}"
    return output


def follow(page: Walk, step: str) -> str:
    """Run the commands of a step, and write its configurations; return the output."""
    of_step = page.text.partition(f"\n## {step}")[2].partition("\n## ")[0]
    for name, config in zip(("replica", "admin"), code_blocks(of_step, "yaml"), strict=False):
        Path(run(page, "pwd").strip(), f"{name}.yaml").write_text(config)
    return "".join(run(page, each) for each in code_blocks(of_step, "sh"))


def status(page: Walk, port: int, token: str, host: str = "127.0.0.1") -> int:
    return int(
        run(
            page,
            "curl -sS -o /dev/null -w '%{http_code}' -H 'Content-Type: application/json' "
            f'-H "Authorization: Bearer $(cat {token}.token)" -d \'{{"input": "@alice"}}\' '
            f"http://{host}:{port}/api/v1/identify/url",
        )
    )


def start_old_service(page: Walk, folder: Path) -> None:
    """Serve users and keys from files, behind the site of deploy/ without TLS."""
    (folder / "config.yaml").write_text(code_blocks(page.text, "yaml")[0])
    sqlite_databases.write(folder / "users.db", ALICE, *generated_users(USERS, seed=1))
    tokens = {**make_store(folder / "keys.db", "shop"), "stolen": issue("stolen")}
    add(folder / "keys.db", record("stolen", tokens["stolen"], revoked=1.0))
    for name, token in tokens.items():
        (folder / f"{name}.token").write_text(token)
    page.start("tornado-idv serve")


def test_service_moves_to_three_replicas_without_a_failed_request(
    tutorial: Walk, tmp_path: Path
) -> None:
    port, front = tutorial.ports["8080"], free_port()
    start_old_service(tutorial, tmp_path)
    site = (ROOT / "deploy/nginx/tornado-idv.conf").read_text(encoding="utf-8")
    site = site.replace("127.0.0.1:8080", f"127.0.0.1:{port}")
    site = site.replace("listen 443 ssl", f"listen 127.0.0.1:{front}")
    nginx = nginx_command(site, tmp_path, "worker_processes 1")
    (tmp_path / "tools" / "nginx").write_text(f'#!/bin/sh\nexec {" ".join(nginx)} "$@"\n')
    (tmp_path / "tools" / "nginx").chmod(0o755)
    request = lookup_request("@alice", (tmp_path / "shop.token").read_text())
    with (
        running_program(nginx, front, tmp_path / "nginx.log"),
        loaded(front, request, clients=1, pause=0.02) as load,
    ):
        for step in "12":
            follow(tutorial, step)
        said = follow(tutorial, "3")
        assert f"Imported {USERS + 1} users into new: {USERS + 1} added" in said
        assert "Imported 2 keys." in said
        said = follow(tutorial, "4")
        assert said.count("The service is ready.") == said.count(ALICE.card_number) == len(HOSTS)
        assert status(tutorial, port, "stolen", HOSTS[0]) == 401
        # Users and keys change after the first copy.
        run(tutorial, "tornado-idv keys issue later > later.token")
        run(tutorial, "tornado-idv keys rotate shop > rotated.token")
        sqlite_databases.insert(tmp_path / "users.db", BOB)
        said = follow(tutorial, "5")
        assert "differs: 0" in said
        assert "Imported 1 key, updated 1; 1 were equal." in said
        load.wait_for(20)
        assert [status(tutorial, front, token) for token in ("later", "rotated")] == [200, 200]
        assert tutorial.commands.stop("serve", "") == 0
        restart(tutorial, HOSTS[0], port)
        load.wait_for(20)
        assert status(tutorial, front, "later") == 200
    assert {*load.results} == {"ok"}
    psql = 'psql "$(cat service.dsn)" -At -c'
    # The replica that stopped has written when keys were used, and can write nothing else.
    assert run(tutorial, f'{psql} "SELECT id FROM idv_keys.last_used ORDER BY 1"').endswith(
        "shop\n"
    )
    for change in ("DELETE FROM users", "DELETE FROM idv_keys.keys"):
        assert "permission denied" in run(tutorial, f'{psql} "{change}" || true')


def restart(page: Walk, host: str, port: int) -> None:
    """As for a new version, while requests come in."""
    arguments = ("serve", "--config", "replica.yaml")
    assert page.commands.stop(*arguments, host) == 0
    run(page, f"IDV_HOST={host} tornado-idv {' '.join(arguments)} > {host}.log 2>&1 &")
    eventually(lambda: listens(port, host))
    assert status(page, port, "shop", host) == 200


def test_step_that_fails_stops_the_rest_of_the_switch(tmp_path: Path) -> None:
    (tmp_path / "site.conf").write_text("")
    with walk(PAGE.replace(SITE, str(tmp_path / "site.conf")), tmp_path) as page:
        copy, reload = code_blocks(section(page.text, "## 5. Switch"), "sh")
        run(page, "tornado-idv() { echo $1; false; }; nginx() { echo $1; false; }; failed=true")
        assert page.shell.run(copy) == (1, "users\n")
        assert page.shell.run(reload) == (1, "-t\n")
        run(page, 'sed() { [ "$failed" ] || { failed=1; echo sed; false; }; }; failed=')
        assert page.shell.run(reload) == (1, "sed\n")


def test_no_secret_is_an_argument_of_a_program() -> None:
    """Other users of the machine can read them."""
    for each in sorted((ROOT / "docs").rglob("*.md")):
        for line in re.findall(r".*\$\(cat .*", each.read_text(encoding="utf-8")):
            assert line.lstrip().startswith("printf ")
