"""The common parts of the commands for the running service."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import NoReturn

from tornado_idv.cli.common import config_option, exit_on_error, json_option, show
from tornado_idv.interfaces.command_tools import Exit
from tornado_idv.kit.admin_client import AdminListener, Record, WrongRequest, token_option


@dataclass(frozen=True)
class Admin(AdminListener):
    """The admin listener, and the output of a command. ``as_json`` is the value of --json."""

    as_json: bool

    def show(
        self, record: Record, lines: Iterable[str], code: Exit = Exit.DONE, *, err: bool = False
    ) -> NoReturn:
        """With ``--json``, print ``record``. Otherwise, print ``lines``. Exit with ``code``."""
        show(record, lines, as_json=self.as_json, err=err)
        sys.exit(code)


def admin_command(command: Callable[..., NoReturn]) -> Callable[..., None]:
    """Add three options to a command, and pass their values to it as one `Admin`."""

    @wraps(command)
    def run(
        config_path: Path, token_file: Path | None, *, as_json: bool, **options: object
    ) -> None:
        other_codes = {WrongRequest: Exit.WRONG_USE}
        with exit_on_error(Exit.UNDETERMINED, as_json=as_json, other_codes=other_codes):
            command(Admin(config_path, token_file, as_json), **options)

    return config_option(token_option(json_option(run)))
