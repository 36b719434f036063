"""Common parts of the commands: options, and the output of records and errors."""

import json
import logging
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from tornado_idv.cli.standard_streams import OutputError, print_message
from tornado_idv.errors import ConfigError, IdvError, MissingConfigError
from tornado_idv.interfaces.command_tools import Exit, printable

Record = dict[str, Any]
_IN_ETC = Path("/etc/tornado-idv/config.yaml")


class RefusedError(IdvError):
    """The command was refused, and nothing was changed. The message is the reason."""


def _find_config() -> Path:
    here = Path("config.yaml")
    # `Path.exists` raises if the current folder is not accessible, for example after `runuser`.
    return _IN_ETC if os.path.exists(_IN_ETC) and not os.path.exists(here) else here  # noqa: PTH110


config_option = click.option(
    "-c",
    "--config",
    "config_path",
    type=click.Path(path_type=Path, readable=False),
    envvar="TORNADO_IDV_CONFIG",
    default=_find_config,
    show_default="config.yaml",
    help=f"The configuration file, also $TORNADO_IDV_CONFIG. If config.yaml is missing: {_IN_ETC}.",
)


def complete_backend(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of configured backends that begin with ``incomplete``, for completion."""
    from tornado_idv import yaml_loader  # noqa: PLC0415 - --help is fast
    from tornado_idv.config.references import Resolved  # noqa: PLC0415

    path = context.params.get("config_path") or _find_config()
    try:
        tree = yaml_loader.read(path.read_bytes(), str(path))
        names = [str(each["name"]) for each in Resolved(tree, path, os.environ).tree["backends"]]
    except (IdvError, OSError, LookupError, TypeError):
        return []
    return [each for each in names if each.startswith(incomplete)]


def backend_option(
    flag: str, help_text: str = "The backend.", *, required: bool = True
) -> Callable[[Any], Any]:
    """Return the option for a configured backend. Its parameter is called ``name``."""
    given: dict[str, Any] = {"required": required, "help": help_text}
    return click.option(flag, "name", metavar="NAME", shell_complete=complete_backend, **given)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")


def examples(*lines: str) -> str:
    """Format examples for the end of a command's help. Prefix each with ``tornado-idv``."""
    return "\n".join(["\b", "Examples:", *(f"  tornado-idv {each}" for each in lines)])


def print_json(record: Record | list[Record]) -> None:
    """Print one record or list. Scripts expect no other text on standard output."""
    click.echo(json.dumps(record))


def show(record: Record, lines: Iterable[str], *, as_json: bool, err: bool = False) -> None:
    """Print the record as JSON for scripts, or the lines for people."""
    if as_json:
        print_json(record)
    else:
        click.echo("\n".join(map(printable, lines)), err=err)


def report(text: str, record: Record, *, as_json: bool) -> None:
    """Print the result of a finished change. If printing fails, the command still succeeds."""
    if not as_json:
        print_message(text)
        return
    try:
        print_json(record)
    except OutputError as error:
        print_message(f"done, but {error}")


def example_request(url: str, token: str, unix_socket: Path | None = None) -> str:
    """Return a curl command for a lookup of @alice, the user of the examples."""
    option = f"--unix-socket {shlex.quote(str(unix_socket))} " if unix_socket else ""
    return (
        f"  curl {option}{url}/api/v1/identify/url -H 'Content-Type: application/json'"
        f" -H 'Authorization: Bearer {token}' -d '{{\"input\": \"@alice\"}}'"
    )


def counted(count: int, noun: str) -> str:
    """Return a number with its noun in singular or plural."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def failure(error: IdvError) -> Record:
    """Return an `IdvError` as a record for scripts. ``line`` is null if no file is at fault."""
    if isinstance(error, ConfigError):
        return {"ok": False, "problems": [asdict(each) for each in error.problems]}
    nowhere = {"file": None, "line": None, "column": None, "path": ""}
    return {"ok": False, "problems": [{**nowhere, "message": str(error)}]}


@contextmanager
def mute_own_logger() -> Iterator[None]:
    """Mute the service's loggers, because the command prints failures. Plugins may still log."""
    log = logging.getLogger("tornado_idv")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(level)


@contextmanager
def exit_on_error(
    code: Exit,
    *,
    as_json: bool = False,
    record: Callable[[IdvError], Record] = failure,
    other_codes: Mapping[type[Any], Exit] | None = None,
) -> Iterator[None]:
    """Print an `IdvError` and exit with ``code``, or with the code of its type.

    The error is text on standard error, or with ``as_json`` the ``record`` on standard output.
    """
    try:
        yield
    except IdvError as error:
        if as_json:
            with suppress(OutputError):  # the exit code still reports the error
                print_json(record(error))
        elif isinstance(error, MissingConfigError):
            advice = "name another file with --config, or write one with: tornado-idv init"
            print_message(f"{error}; {advice}", "error")
        else:
            print_message(str(error), "error")
        codes = (other_codes or {}).items()
        sys.exit(next((other for kind, other in codes if isinstance(error, kind)), code))
