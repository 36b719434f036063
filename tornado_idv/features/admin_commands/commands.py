"""The commands ``tornado-idv cache``, ``explain``, ``health`` and ``reload``."""

from typing import NoReturn

import click

from tornado_idv.cli.admin_client import AdminListener, WrongRequest, admin_command, cache_sentence
from tornado_idv.cli.common import complete_backend, examples, exit_on_error
from tornado_idv.errors import ConfigError
from tornado_idv.interfaces.command_tools import Exit

_PURGED = {
    "all": "Purged the whole cache.",
    "backend": 'Purged the answers of the backend, and every "not found".',
    "user": 'Purged the answers about the user, and every "not found".',
}


@click.group()
def cache() -> None:
    """Show or purge the cache of the running service."""


@cache.command(epilog=examples("cache stats"))
@admin_command
def stats(admin: AdminListener) -> NoReturn:
    """Show the number of cached answers and the hit ratio.

    Exit codes: 0 done; 3 no response.
    """
    record = admin.request("GET", "/status.json")
    admin.show(record["cache"], [cache_sentence(record["cache"])])


@cache.command(epilog=examples("cache purge --nickname @alice"))
@click.option("--nickname", help="Purge the answers about the user with this nickname.")
@click.option("--card", "card_number", help="Purge the answers about this card number's user.")
@click.option(
    "--backend", shell_complete=complete_backend, help="Purge the answers of this backend."
)
@click.option("--all", is_flag=True, default=None, help="Purge everything.")
@admin_command
def purge(admin: AdminListener, **options: str | bool | None) -> NoReturn:
    """Drop cached answers. Give exactly one of the four options.

    Exit codes: 0 done; 2 wrong use; 3 no response, or the purge did not reach the shared cache.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if len(given) != 1:
        raise click.UsageError("give exactly one of --nickname, --card, --backend and --all")
    record = admin.request("POST", "/cache/purge", given)
    admin.show(record, [_PURGED[record["purged"]]])


_RESULTS = {"found": ("found", Exit.DONE), "not_found": ("not found", Exit.NO)}
_CACHED = {
    "found": "a found user",
    "not_found": '"not found"',
    "stale": "an expired answer, served only if the lookup fails",
    "failure": "a failure; the lookup is repeated only after cache.failure_memo",
    "absent": "nothing",
}


@click.command(epilog=examples("explain @alice"))
@click.argument("who", metavar="@NICK|URL|DIGITS")
@admin_command
def explain(admin: AdminListener, who: str) -> NoReturn:
    """Look a user up in each backend of the running service.

    The command bypasses the cache, and caches nothing. It shows results, but no user data.

    Exit codes: 0 found; 1 not found; 2 wrong use; 3 could not be determined.
    """
    record = admin.request("POST", "/explain", {"card_number" if who.isdigit() else "input": who})
    result, code = _RESULTS.get(record["result"], ("could not be determined", Exit.UNDETERMINED))
    lines = [
        f"cached: {_CACHED.get(record['cache'], record['cache'])}",
        *(
            f"asked {each['backend']}: {each['outcome']} ({each['ms']} ms)"
            for each in record["backends"]
        ),
        f"result: {result}",
    ]
    admin.show(record, lines, code)


_SENTENCES = {
    "ready": "The service is ready.",
    "degraded": "The service is ready, but degraded: {parts}.",
    "starting": "The service is starting: no worker serves yet.",
    "draining": "The service is draining: it is about to stop.",
}


@click.command(epilog=examples("health && echo ready"))
@admin_command
def health(admin: AdminListener) -> NoReturn:
    """Report whether the running service is ready.

    Exit codes: 0 ready or degraded; 1 starting or draining; 3 no response.
    """
    record = admin.request("GET", "/health/ready")
    sentence = _SENTENCES.get(str(record["status"]), "The service is {status}.")
    parts = ", ".join(map(str, record.get("degraded", ())))
    code = Exit.DONE if record["status"] in ("ready", "degraded") else Exit.NO
    admin.show(record, [sentence.format(parts=parts, status=record["status"])], code)


@click.command(epilog=examples("check && tornado-idv reload"))
@admin_command
def reload(admin: AdminListener) -> NoReturn:
    """Reload the configuration of the running service.

    After an error, the whole old configuration stays effective.

    Exit codes: 0 done; 1 the configuration is wrong; 3 no response, or a file or backend cannot
    be opened.
    """
    other_codes = {ConfigError: Exit.NO}
    with exit_on_error(Exit.UNDETERMINED, as_json=admin.as_json, other_codes=other_codes):
        try:
            # Longer than the service's own timeout for opening backends.
            record = admin.request("POST", "/reload", timeout=150.0)
        except WrongRequest as error:
            problems = map(str, (error, *error.record.get("problems", ())))
            admin.show(error.record, problems, Exit.NO, err=True)
    lines = ["The configuration is reloaded."]
    if record["needs_restart"]:
        names = ", ".join(map(str, record["needs_restart"]))
        lines.append(f"These settings take effect after a restart: {names}")
    admin.show(record, lines)
