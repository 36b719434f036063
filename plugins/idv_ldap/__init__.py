"""The backend kind ``ldap``: users of an LDAP directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from idv_ldap.commands import commands
from tornado_idv import CommandTools, hookimpl


@hookimpl
def idv_backend_kinds() -> Mapping[str, str]:
    """Provide the kind ``ldap``."""
    return {"ldap": "idv_ldap.backend:LdapBackend"}


@hookimpl
def idv_commands(tools: CommandTools) -> Sequence[click.Command]:
    """Add ``tornado-idv ldap``."""
    return commands(tools)
