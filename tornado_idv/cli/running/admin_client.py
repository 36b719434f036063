"""Requests of commands to the admin listener of the running service."""

from __future__ import annotations

import http.client
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from tornado_idv.cli.common import Record, config_option, exit_on_error, json_option
from tornado_idv.commands import Exit
from tornado_idv.config.parts import load_admin_settings
from tornado_idv.errors import IdvError, StartError
from tornado_idv.files import require_file
from tornado_idv.service.sockets import url_of

_TIMEOUT = 10.0


class AdminUnavailable(IdvError):
    """The admin listener did not do what was asked; the message says why."""


class WrongRequest(IdvError):
    """The admin listener rejects what was asked for as wrong use; the message says why."""


@dataclass(frozen=True, slots=True)
class AdminClient:
    """The admin listener at ``host`` and ``port``; ``token`` is a key with the scope admin."""

    host: str
    port: int
    token: str | None = None

    def request(
        self, method: str, path: str, record: Record | None = None, *, timeout: float = _TIMEOUT
    ) -> tuple[int, Record]:
        """Return the status and the record of a response, which may be 422 or 503.

        Raises `AdminUnavailable`, also if there is no response within ``timeout`` seconds.
        """
        fields = {"Content-Type": "application/json"}
        if self.token is not None:
            fields["Authorization"] = f"Bearer {self.token}"
        url = url_of("http", self.host, self.port)
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=timeout)
        try:
            connection.request(method, path, json.dumps(record), fields)
            with connection.getresponse() as response:
                received = json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise AdminUnavailable(
                f"no response from the admin listener at {url}: {reason}"
            ) from None
        finally:
            connection.close()
        if not isinstance(received, dict) or "status" not in received:
            raise AdminUnavailable(f"{url} is not an admin listener of this service")
        if received["status"] == "error" and response.status != http.client.UNPROCESSABLE_ENTITY:
            advice = "; name a file with a key of scope admin by --token-file"
            forbidden = response.status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN)
            lines = [f"{url}: {received.get('message')}{advice if forbidden else ''}"]
            raise AdminUnavailable("\n".join([*lines, *received.get("problems", ())]))
        return response.status, received


def admin_options(command: Any) -> Any:
    """Add ``--config``, ``--token-file`` and ``--json``."""
    token_file = click.option(
        "--token-file",
        type=click.Path(path_type=Path),
        help="A file with a key of scope admin, for a listener that is not on loopback.",
    )
    return config_option(token_file(json_option(command)))


def admin_client(config_path: Path, token_file: Path | None) -> AdminClient:
    """Return a client of the admin listener that the configuration names; raises `StartError`.

    The rest of the file may be wrong: the running service has read it before, or rejects it.
    """
    settings = load_admin_settings(config_path, os.environ)
    if settings is None:
        advice = "add: admin: {port: 8081}, and restart the service"
        raise StartError(f"{config_path} has no admin listener; {advice}")
    if not settings.port:
        raise StartError("admin.port is 0, any free port: a command needs a fixed one")
    return AdminClient(settings.host, settings.port, _token(token_file))


def status_or_exit(config_path: Path, token_file: Path | None, *, as_json: bool) -> Record:
    """Return the record of ``/status.json``; exit with 3 where there is none."""
    with exit_on_error(Exit.UNDETERMINED, as_json=as_json):
        _, record = admin_client(config_path, token_file).request("GET", "/status.json")
    return record


def post_or_exit(
    path: str, body: Record, config_path: Path, token_file: Path | None, *, as_json: bool
) -> Record:
    """Return the record of a response; exit with 2 for a value that is not valid, else with 3."""
    with exit_on_error(Exit.UNDETERMINED, as_json=as_json):
        status, record = admin_client(config_path, token_file).request("POST", path, body)
    if status == http.client.UNPROCESSABLE_ENTITY:
        with exit_on_error(Exit.WRONG_USE, as_json=as_json):
            raise WrongRequest(str(record.get("message")))
    return record


def _token(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        token = require_file(path).decode("ascii").strip()
    except ValueError:
        raise StartError(f"{path}: not a key") from None
    if not token.isprintable():
        raise StartError(f"{path}: more than one line")
    return token
