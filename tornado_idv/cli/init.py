"""``tornado-idv init``."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import click

from tornado_idv.cli.common import example_request, exit_on_error
from tornado_idv.config.schema import json_schema
from tornado_idv.errors import StartError
from tornado_idv.interfaces.commands import Exit
from tornado_idv.keys.token import digest, issue
from tornado_idv.registry import backend_kinds, plugin_manager

_CONFIG = """\
# yaml-language-server: $schema=config.schema.json
# After a change: tornado-idv check --config {config}

profile_sites: [https://profiles.example]   # the sites of profile URLs; responses use the first

server: {{host: 127.0.0.1, port: 8080, docs: true}}   # GET /docs describes the API
admin: {{port: 8081}}                         # status page, health checks and metrics; on loopback

auth:
  keys:
    - {{id: first, sha256: {sha256}, owner: init}}

backends:                                   # queried in this order
  - {{name: users, kind: yaml, path: users.yaml}}
"""

_USERS = """\
# Edits are visible at once. A program that rewrites this file should write a new one and
# rename it over this one, with a first line like "count: 2": then a truncated copy is an error.
users:
  - {nickname: "@alice", card_number: "4000123412341234", plan: Free}
  - {nickname: "@bob", card_number: "0012345670", plan: Pro}
  # With "demo: true" in config.yaml users can fail on purpose, to test the programs that call:
  # - {nickname: "@down", fault: {status: 503}}
  # - {nickname: "@slow", card_number: "4000101010101010", plan: Free, fault: {delay: 1s}}
  # - {nickname: "@busy", fault: {status: 429}}
"""


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path())
def init(folder: Path) -> None:
    """Write a starter configuration and a key into FOLDER.

    FOLDER, by default the current one, gets config.yaml and users.yaml, and the schema with
    which editors complete and check config.yaml.

    Nothing that exists is overwritten. The key is shown once: only its SHA-256 is kept.
    """
    token = issue("first")
    config = shlex.quote(str(folder / "config.yaml"))
    # A comment cannot hold a line break or bytes that are not text.
    shown = config if config.isprintable() else "config.yaml"
    with exit_on_error(Exit.NO):
        schema = json_schema(backend_kinds(plugin_manager()))
        files = {
            folder / "config.yaml": _CONFIG.format(config=shown, sha256=digest(token).hex()),
            folder / "users.yaml": _USERS,
            folder / "config.schema.json": f"{json.dumps(schema, indent=2)}\n",
        }
        existing = [str(path) for path in files if os.path.lexists(path)]
        if existing:
            raise StartError(f"{' and '.join(existing)}: already there; nothing was written")
        try:
            for path, text in files.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("x", encoding="utf-8") as file:
                    file.write(text)
        except OSError as error:
            raise StartError(f"{error.filename}: cannot be written: {error.strerror}") from error
    try:
        click.echo(f"Wrote {', '.join(str(path) for path in files)}.\n")
        click.echo(f"Your key, which is shown only once:\n\n  {token}\n")
        click.echo(f"Now run\n\n  tornado-idv serve --config {config}\n\nand send\n")
        click.echo(example_request("http://127.0.0.1:8080", token))
    except OSError:
        for path in files:  # their key is lost
            path.unlink()
        raise
