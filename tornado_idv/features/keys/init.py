"""The command ``tornado-idv init``: a starter configuration with users and a key."""

import os
import re
import shlex
import time
from collections.abc import Mapping
from pathlib import Path

import click

from tornado_idv.cli.common import example_request, examples, exit_on_error
from tornado_idv.cli.standard_streams import OutputError
from tornado_idv.errors import StartError
from tornado_idv.features.keys.editor import KeyEditor
from tornado_idv.features.keys.record import KeyRecord, Token
from tornado_idv.interfaces.command_tools import Exit
from tornado_idv.keys.store import BUSY_TIMEOUT, locate_store
from tornado_idv.keys.token import digest, issue
from tornado_idv.registry import installed_kinds, plugin_manager

_CONFIG = """\
# To complete and check this file in an editor: tornado-idv schema --help
# After a change: tornado-idv check --config {config}

profile_sites: [https://profiles.example]   # the sites of profile URLs; responses use the first

server: {{host: 127.0.0.1, port: 8080, docs: true}}   # GET /docs describes the API
admin: {{port: 8081}}                         # status page, health checks and metrics; on loopback

auth: {{store: keys.db}}                      # see tornado-idv keys --help

backends:                                   # queried in this order
{backend}"""

_YAML_USERS = """\
# Edits are visible at once. A program that changes them should write a new file, and
# rename it to this name. With a first line like "count: 2", a truncated file is an error.
users:
  - {nickname: "@alice", card_number: "4000123412341234", plan: Free}
  - {nickname: "@bob", card_number: "0012345670", plan: Pro}
  # If config.yaml has "demo: true", lookups can fail or be slow, to test clients:
  # - {nickname: "@down", fault: {status: 503}}
  # - {nickname: "@slow", card_number: "4000101010101010", plan: Free, fault: {delay: 1s}}
  # - {nickname: "@busy", fault: {status: 429}}
"""

_CSV_USERS = """\
nickname,card_number,plan
alice,4000123412341234,Free
bob,0012345670,Pro
"""

_BACKENDS = {
    "yaml": "  - {name: users, kind: yaml, path: users.yaml}\n",
    "sqlite": "  - {name: users, kind: sqlite, path: users.db}\n",
    "postgres": """\
  - name: users
    kind: postgres
    dsn: ${file:postgres.dsn}   # write that file: postgresql://idv:password@db.example.org/people
    # canary: {nickname: "@idv-canary", card_number: "9000000000000001"}   # create this user
    # table: users              # or by_nickname and by_card: queries of your own
""",
    "ldap": """\
  - name: users
    kind: ldap
    uris: [ldaps://ldap.example.org]
    bind: {dn: "cn=idv,dc=example,dc=org", password: "${file:ldap.password}"}   # write that file
    base_dn: "ou=people,dc=example,dc=org"
    # canary: {nickname: "@idv-canary", card_number: "9000000000000001"}   # create this user
    by_nickname: {filter: "(&(objectClass=person)(uid={nickname}))"}
    by_card: {filter: "(&(objectClass=person)(employeeNumber={card_number}))"}
    response: {nickname: uid, card_number: employeeNumber, plan: {path: title, default: Free}}

identifiers: {nickname_case: fold}              # LDAP ignores case, too
""",
    "upstream": """\
  - name: users
    kind: upstream
    base_url: https://crm.example.org/v2
    # canary: {nickname: "@idv-canary", card_number: "9000000000000001"}   # create this user
    auth: {kind: bearer, token: "${file:upstream.token}"}   # write that file
    by_nickname: {url: "/people/{nickname}"}
    by_card: {url: "/people", query: {card: "{card_number}", limit: "2"}}
    response:
      select: not_null(items, @)                # a record, or a list of records
      nickname: login
      card_number: card
      plan: subscription.level
      not_known_when: "error == 'no such person'"   # in the body of a 404
""",
}
_USERS = {"yaml": {"users.yaml": _YAML_USERS}, "sqlite": {"users.csv": _CSV_USERS}}
_INSTALL = {"postgres": "install asyncpg, ", "ldap": "install python-ldap, "}
_NEXT = {
    "yaml": "",
    "sqlite": "  tornado-idv users import {folder}/users.csv --to users --config {config}\n",
    "postgres": "  tornado-idv postgres init --apply --config {config}\n",
}
"""For each kind of backend, the line of output with the command to run before the first start."""


@click.command(epilog=examples("init my-directory"))
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path())
@click.option(
    "--from",
    "kind",
    type=click.Choice(list(_BACKENDS)),
    default="yaml",
    help="Kind of the backend with your users.",
)
def init(folder: Path, kind: str) -> None:
    """Write a starter configuration and a key into FOLDER.

    By default, FOLDER is the current folder. The command writes config.yaml with a backend of the
    given kind, and a key store. For yaml and sqlite, it also writes a file of example users.

    No existing file is overwritten. The key is shown once: only its SHA-256 is stored.
    """
    token = issue("first")
    config = shlex.quote(str(folder / "config.yaml"))
    # The path is for a comment: a line break or an invalid byte would break the file.
    shown = config if config.isprintable() else "config.yaml"
    texts = {
        "config.yaml": _CONFIG.format(config=shown, backend=_BACKENDS[kind]),
        **_USERS.get(kind, {}),
    }
    files = [folder / name for name in (*texts, "keys.db")]
    with exit_on_error(Exit.NO):
        existing = [str(path) for path in files if os.path.lexists(path)]
        if existing:
            raise StartError(f"would overwrite {' and '.join(existing)}; nothing was written")
        _write(folder, texts, token)
    try:
        click.echo(f"Wrote {', '.join(map(str, files))}.\n")
        click.echo(f"Your key, shown only once:\n\n  {token}\n")
        command = _NEXT.get(kind, "  tornado-idv check --config {config}\n").format(
            folder=shlex.quote(str(folder)), config=config
        )
        todo = _INSTALL.get(kind, "")
        for name in re.findall(r"\$\{file:(.*?)\}", _BACKENDS[kind]):
            todo += f"edit config.yaml, write {folder / name} with mode 600, and "
        click.echo(f"Now {todo}run\n\n{command}  tornado-idv serve --config {config}\n")
        click.echo(f"and send{', with a user of yours,' * bool(todo)}\n")
        click.echo(example_request("http://127.0.0.1:8080", token))
    except OutputError:
        for path in files:  # the key is lost, and the files are useless without it
            path.unlink()
        raise


def _write(folder: Path, texts: Mapping[str, str], token: str) -> None:
    """Write a key store with this token, and the files in ``texts``. Raises `StartError`."""
    kinds, now = installed_kinds(plugin_manager(entry_points="sqlite")), time.time()
    place = locate_store(folder / "keys.db", kinds)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not place.create():  # before the other files, because these would prevent a second run
            raise StartError(f"{place.name}: already exists")
        for name, text in texts.items():
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise StartError(f"{error.filename}: cannot be written: {error.strerror}") from error
    key = KeyRecord("first", now, (Token(digest(token), now),), owner="init")
    with place.connected(busy_timeout=BUSY_TIMEOUT, read_only=False) as database:
        KeyEditor(database, place.name).add([key])
