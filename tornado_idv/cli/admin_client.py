"""The client of the running service's admin listener, with common options and the output."""

import http.client
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import NoReturn

import click
from pydantic import BaseModel

from tornado_idv.cli.common import Record, config_option, exit_on_error, json_option, show
from tornado_idv.config.address import Address, AdminSettings
from tornado_idv.errors import IdvError, StartError
from tornado_idv.files import require_file
from tornado_idv.interfaces.command_tools import Exit
from tornado_idv.kit.config_parts import load_parts


class _Parts(BaseModel):
    admin: AdminSettings | None = None


class WrongRequest(IdvError):
    """The admin listener rejects a request as invalid. ``record`` is the body of the response."""

    def __init__(self, record: Record) -> None:
        super().__init__(str(record.get("message")))
        self.record = record


@dataclass(frozen=True)
class AdminListener:
    """The admin listener, and the output of a command. The fields are the common options."""

    config_path: Path
    token_file: Path | None
    as_json: bool

    def request(
        self, method: str, path: str, body: Record | None = None, *, timeout: float = 10.0
    ) -> Record:
        """Send a request, and return the JSON object of the response.

        Of config.yaml, only the section ``admin`` is read, because other sections may be invalid.
        Raises `WrongRequest` after the status 422. Raises `StartError` after any other error, for a
        wrong setting or token file, or without a response in ``timeout`` seconds.
        """
        settings = load_parts(self.config_path, _Parts).admin
        if settings is None:
            advice = "add: admin: {port: 8081}, and restart the service"
            raise StartError(f"{self.config_path} has no admin listener; {advice}")
        if not settings.port:
            raise StartError("admin.port is 0 (any free port), but commands need a fixed port")
        fields = {"Content-Type": "application/json"}
        if self.token_file is not None:
            fields["Authorization"] = f"Bearer {_read_token(self.token_file)}"
        url = Address(settings.host, settings.port).url("http")
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=timeout)
        try:
            connection.request(method, path, json.dumps(body), fields)
            with connection.getresponse() as response:
                record: Record = json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise StartError(f"no response from the admin listener at {url}: {reason}") from None
        finally:
            connection.close()
        if not isinstance(record, dict) or "status" not in record:
            raise StartError(f"{url} is not an admin listener of this service")
        if response.status == http.client.UNPROCESSABLE_ENTITY:
            raise WrongRequest(record)
        if record["status"] == "error":
            text = f"{url}: {record.get('message')}"
            if response.status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
                text += "; name a file with a key of scope admin by --token-file"
            raise StartError("\n".join([text, *record.get("problems", ())]))
        return record

    def show(
        self, record: Record, lines: Iterable[str], code: Exit = Exit.DONE, *, err: bool = False
    ) -> NoReturn:
        """With ``--json``, print ``record``. Otherwise, print ``lines``. Exit with ``code``."""
        show(record, lines, as_json=self.as_json, err=err)
        sys.exit(code)


def admin_command(command: Callable[..., NoReturn]) -> Callable[..., None]:
    """Add three options to a command, and pass their values to it as an `AdminListener`."""

    @wraps(command)
    def run(
        config_path: Path, token_file: Path | None, *, as_json: bool, **options: object
    ) -> None:
        other_codes = {WrongRequest: Exit.WRONG_USE}
        with exit_on_error(Exit.UNDETERMINED, as_json=as_json, other_codes=other_codes):
            command(AdminListener(config_path, token_file, as_json), **options)

    token_option = click.option(
        "--token-file",
        type=click.Path(path_type=Path, readable=False),
        help="File with a key of scope admin. Not needed if the admin listener is on loopback.",
    )
    return config_option(token_option(json_option(run)))


def _read_token(path: Path) -> str:
    try:
        token = require_file(path).decode("ascii").strip()
    except ValueError:
        raise StartError(f"{path}: not a key") from None
    if not token.isprintable():
        raise StartError(f"{path}: more than one line")
    return token


def cache_sentence(cache: Record) -> str:
    """Return the sentence on the member ``cache`` of ``/status.json``."""
    entries, lookups = cache["entries"], cache["lookups"]
    total = sum(lookups.values())
    ratio = f"{lookups['hit'] / total:.1%} of {total} lookups were hits" if total else "no lookups"
    return (
        f"{entries['found']} found and {entries['negative']} not found; {ratio}; "
        f"{cache['evictions']} evictions"
    )
