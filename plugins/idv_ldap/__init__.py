"""The backend kind ``ldap``: users of an LDAP directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from idv_ldap import refusals as refusals  # its memory is made before processes are forked
from tornado_idv import CommandTools, Exit, Kinds, StartError, hookimpl


@hookimpl
def idv_kinds() -> Kinds:
    """Provide the kind ``ldap``."""
    return Kinds(backends={"ldap": "idv_ldap.backend:LdapBackend"})


@hookimpl
def idv_commands(tools: CommandTools) -> Sequence[click.Command]:
    """Add ``tornado-idv ldap``."""

    @click.group("ldap")
    def group() -> None:
        """Try the mapping of an LDAP directory."""

    @group.command("try")
    @click.argument("name")
    @click.argument("who", metavar="@NICK|URL|DIGITS")
    @tools.config_option
    @tools.json_option
    def try_(name: str, who: str, config_path: Path, *, as_json: bool) -> None:
        """Look one user up in the directory NAME, and show every step.

        Connect, TLS and bind with each server, the filter, the attributes of the entries, the
        result of each expression, and the user or why there is none.

        Exit codes: 0 found; 1 not found; 2 wrong use; 3 could not be determined.
        """
        from idv_ldap.options import NOT_INSTALLED  # noqa: PLC0415 - not for `--help`

        with tools.exit_on_error(Exit.UNDETERMINED, as_json=as_json):
            try:
                from idv_ldap.try_ldap import try_ldap  # noqa: PLC0415 - may be not installed
            except ModuleNotFoundError:
                raise StartError(f"backend {name}: {NOT_INSTALLED}") from None
            try_ldap(tools, config_path, name, who, as_json=as_json)

    return [group]
