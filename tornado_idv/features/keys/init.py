"""The command ``tornado-idv init``: a starter configuration with users and a key."""

import os
import re
import shlex
import time
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import click

from tornado_idv.cli.common import example_request, examples, exit_on_error
from tornado_idv.cli.standard_streams import OutputError
from tornado_idv.errors import StartError
from tornado_idv.features.keys.editor import KeyEditor, KeyRecord, Token
from tornado_idv.interfaces.command_tools import Exit
from tornado_idv.keys.store import BUSY_TIMEOUT, locate_store
from tornado_idv.keys.token import digest, issue
from tornado_idv.registry import installed_kinds, plugin_manager

_KINDS = ("yaml", "sqlite", "postgres", "ldap", "upstream")
_USERS = {"yaml": "users.yaml", "sqlite": "users.csv"}
"""For kinds with example users, the name of their file."""
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
    type=click.Choice(_KINDS),
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
    start, backend = _starter("config.yaml"), _starter(f"backend_{kind}.yaml")
    texts = {"config.yaml": start.replace("{config}", shown) + backend}
    if kind in _USERS:
        texts[_USERS[kind]] = _starter(_USERS[kind])
    paths = [folder / name for name in (*texts, "keys.db")]
    with exit_on_error(Exit.NO):
        existing = [str(path) for path in paths if os.path.lexists(path)]
        if existing:
            raise StartError(f"would overwrite {' and '.join(existing)}; nothing was written")
        _write(folder, texts, token)
    try:
        click.echo(f"Wrote {', '.join(map(str, paths))}.\n")
        click.echo(f"Your key, shown only once:\n\n  {token}\n")
        command = _NEXT.get(kind, "  tornado-idv check --config {config}\n").format(
            folder=shlex.quote(str(folder)), config=config
        )
        todo = _INSTALL.get(kind, "")
        for name in re.findall(r"\$\{file:(.*?)\}", backend):
            todo += f"edit config.yaml, write {folder / name} with mode 600, and "
        click.echo(f"Now {todo}run\n\n{command}  tornado-idv serve --config {config}\n")
        click.echo(f"and send{', with a user of yours,' * bool(todo)}\n")
        click.echo(example_request("http://127.0.0.1:8080", token))
    except OutputError:
        for path in paths:  # the key is lost, and the files are useless without it
            path.unlink()
        raise


def _starter(name: str) -> str:
    """Return the start of a configuration, a backend of a kind, or example users."""
    return (files(__package__) / "starter" / name).read_text("utf-8")


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
