"""``tornado-idv cache``."""

from __future__ import annotations

from pathlib import Path

import click

from tornado_idv.cli.common import Record, print_json
from tornado_idv.cli.running.admin_client import admin_options, post_or_exit, status_or_exit
from tornado_idv.cli.running.status import cache_sentence

_DONE = {
    "all": "Purged the whole cache.",
    "backend": 'Purged the answers of the backend, and every "not found".',
    "user": 'Purged the answers about the user, and every "not found".',
}


@click.group()
def cache() -> None:
    """Show or purge the cache of the running service."""


@cache.command()
@admin_options
def stats(*, config_path: Path, token_file: Path | None, as_json: bool) -> None:
    """Show the number of entries and the hit ratio.

    Exit codes: 0 done; 3 no response.
    """
    record = status_or_exit(config_path, token_file, as_json=as_json)
    if as_json:
        print_json(record["cache"])
    else:
        click.echo(cache_sentence(record["cache"]))


@cache.command()
@click.option("--nickname", help="Purge the answers about the user with this nickname.")
@click.option("--card", "card_number", help="Purge the answers about the user with this card.")
@click.option("--backend", help="Purge the answers of this backend.")
@click.option("--all", "everything", is_flag=True, help="Purge everything.")
@admin_options
def purge(
    *,
    nickname: str | None,
    card_number: str | None,
    backend: str | None,
    everything: bool,
    config_path: Path,
    token_file: Path | None,
    as_json: bool,
) -> None:
    """Drop cached answers, by exactly one of four options.

    Exit codes: 0 done; 2 wrong use; 3 no response, or not delivered to the shared cache.
    """
    given: Record = {"nickname": nickname, "card_number": card_number, "backend": backend}
    given = {name: value for name, value in given.items() if value is not None}
    if everything:
        given["all"] = True
    if len(given) != 1:
        raise click.UsageError("give exactly one of --nickname, --card, --backend and --all")
    record = post_or_exit("/cache/purge", given, config_path, token_file, as_json=as_json)
    if as_json:
        print_json(record)
    else:
        click.echo(_DONE[record["purged"]])
