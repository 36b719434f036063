"""Requests of commands to the admin listener of the running service."""

from __future__ import annotations

import http.client
import json
import os
from pathlib import Path
from typing import Any

import click

from tornado_idv.cli.common import Record, config_option, exit_on_error, json_option
from tornado_idv.config.parts import AdminPart, load_part
from tornado_idv.errors import IdvError, StartError
from tornado_idv.files import require_file
from tornado_idv.interfaces.commands import Exit
from tornado_idv.service.sockets import url_of

_TIMEOUT = 10.0


class AdminUnavailable(IdvError):
    """The admin listener did not do what was asked; the message says why."""


class WrongRequest(IdvError):
    """The admin listener rejects what was asked for as wrong use; the message says why."""


def admin_options(command: Any) -> Any:
    """Add ``--config``, ``--token-file`` and ``--json``."""
    token_file = click.option(
        "--token-file",
        type=click.Path(path_type=Path),
        help="A file with a key of scope admin, for a listener that is not on loopback.",
    )
    return config_option(token_file(json_option(command)))


def admin_request(
    method: str,
    path: str,
    config_path: Path,
    token_file: Path | None,
    record: Record | None = None,
    *,
    timeout: float = _TIMEOUT,
) -> tuple[int, Record]:
    """Return the status and the record of a response, which may be 422 or 503.

    The rest of the configuration may be wrong: the running service has read it before, or rejects
    it. Raises `StartError` where it names no admin listener, and `AdminUnavailable`, also if there
    is no response within ``timeout`` seconds.
    """
    settings = load_part(AdminPart, config_path, os.environ).admin
    if settings is None:
        advice = "add: admin: {port: 8081}, and restart the service"
        raise StartError(f"{config_path} has no admin listener; {advice}")
    if not settings.port:
        raise StartError("admin.port is 0, any free port: a command needs a fixed one")
    fields = {"Content-Type": "application/json"}
    if token_file is not None:
        fields["Authorization"] = f"Bearer {_read_token(token_file)}"
    url = url_of("http", settings.host, settings.port)
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=timeout)
    try:
        connection.request(method, path, json.dumps(record), fields)
        with connection.getresponse() as response:
            received = json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise AdminUnavailable(f"no response from the admin listener at {url}: {reason}") from None
    finally:
        connection.close()
    if not isinstance(received, dict) or "status" not in received:
        raise AdminUnavailable(f"{url} is not an admin listener of this service")
    if received["status"] == "error" and response.status != http.client.UNPROCESSABLE_ENTITY:
        text = f"{url}: {received.get('message')}"
        if response.status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
            text += "; name a file with a key of scope admin by --token-file"
        raise AdminUnavailable("\n".join([text, *received.get("problems", ())]))
    return response.status, received


def status_or_exit(config_path: Path, token_file: Path | None, *, as_json: bool) -> Record:
    """Return the record of ``/status.json``; exit with 3 where there is none."""
    with exit_on_error(Exit.UNDETERMINED, as_json=as_json):
        _, record = admin_request("GET", "/status.json", config_path, token_file)
    return record


def post_or_exit(
    path: str, body: Record, config_path: Path, token_file: Path | None, *, as_json: bool
) -> Record:
    """Return the record of a response; exit with 2 for a value that is not valid, else with 3."""
    other_codes = {WrongRequest: Exit.WRONG_USE}
    with exit_on_error(Exit.UNDETERMINED, as_json=as_json, other_codes=other_codes):
        status, record = admin_request("POST", path, config_path, token_file, body)
        if status == http.client.UNPROCESSABLE_ENTITY:
            raise WrongRequest(str(record.get("message")))
    return record


def _read_token(path: Path) -> str:
    try:
        token = require_file(path).decode("ascii").strip()
    except ValueError:
        raise StartError(f"{path}: not a key") from None
    if not token.isprintable():
        raise StartError(f"{path}: more than one line")
    return token
