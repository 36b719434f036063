"""The options of a backend of the kind ``postgres``."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Self
from urllib.parse import parse_qs, urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator

from tornado_idv import (
    BackendOptions,
    ByCard,
    ByNickname,
    Duration,
    Options,
    Percentage,
    Query,
    SecretUrl,
    WholeNumber,
)


def quoted(name: str) -> str:
    """Quote a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def quoted_table(table: str) -> str:
    """Quote ``name`` or ``schema.name``."""
    return ".".join(map(quoted, table.split(".")))


_ROLES = ("any", "primary", "standby", "prefer-standby", "read-write", "read-only")
_HOST = r"(?:\[[^\[\]@/?#,]*\]|[^@/?#,:\[\]]*)(?::[0-9]{0,5})?"
_URI = re.compile(
    rf"((?i:postgres(?:ql)?)://(?:[^@/?#\[\]]*@)?)({_HOST}(?:,{_HOST})*)(/[^@?#]*)?((?:\?[^@#]*)?)"
)
_TLS_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


@dataclass(frozen=True, slots=True)
class Dsn:
    """A validated URI: ``uris`` has one for each host, by its address, in the order of the list.

    ``roles`` are the values for ``target_session_attrs`` that are tried in turn, each with every
    host. ``name`` is what messages call it: its hosts and its database.
    """

    uris: Mapping[str, str]
    roles: Sequence[str]
    name: str

    @classmethod
    def parse(cls, text: str) -> Dsn:
        """Parse a URI; raises `ValueError`."""
        parts = _URI.fullmatch(text)
        start, hosts, path, options = parts.groups("") if parts else [""] * 4
        uris = {
            host
            if ":" in host.rpartition("]")[2]
            else f"{host}:5432": f"{start}{host}{path}{options}"
            for host in hosts.split(",")
        }
        try:
            # Host by host, as asyncpg gets them: most releases of Python refuse a list with IPv6.
            first, *_ = [urlsplit(uri).query for uri in uris.values()]
            query = parse_qs(first, strict_parsing=True) if first else {}
        except ValueError:
            parts = None
        if parts is None:
            raise ValueError(
                "not a connection URI; write postgresql://user:password@host:5432/database, and "
                "percent-encode special characters in the password (@ as %40, / as %2F)"
            )
        role = _one_of(_ROLES, query, "target_session_attrs", "any")
        _one_of(_TLS_MODES, query, "sslmode", "prefer")
        roles = {"prefer-standby": ("standby", "any")}.get(role, (role,))
        if role == "any" and len(uris) > 1:
            roles = ("primary", "any")
        return cls(uris, roles, f"postgresql://{hosts}{path}")


def _one_of(allowed: Sequence[str], query: dict[str, list[str]], name: str, default: str) -> str:
    value = query.get(name, [default])[-1]
    if value not in allowed:
        raise ValueError(f"{name} must be one of: {', '.join(allowed)}")
    return value


NOT_INSTALLED = (
    f"asyncpg is not installed; install it with: {sys.executable} -m pip install 'asyncpg>=0.30,<1'"
)
"""The advice names the library, since this project publishes no package."""
Name = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[^\x00]+$")]
Sql = Annotated[str, Field(min_length=1, pattern=r"^[^\x00]+$")]


def _dsn(secret: SecretStr) -> SecretStr:
    Dsn.parse(secret.get_secret_value())
    return secret


DsnSecret = Annotated[SecretUrl, AfterValidator(_dsn)]


class Columns(Options):
    """The columns of the table; every value in them is text."""

    nickname: Name = "nickname"
    """The nickname, without ``@`` in front."""
    card_number: Name = "card_number"
    """The card number, in a column of text so that zeros in front stay."""
    plan: Name = "plan"
    """The plan."""
    profile_url: Name | None = None
    """The profile URL; if not given, the column ``profile_url``, if the table has one."""


class PoolOptions(Options):
    """The connections of one process."""

    min: Annotated[WholeNumber, Field(ge=0, le=1000)] = 1
    """Connections that are opened at the start."""
    max: Annotated[WholeNumber, Field(ge=1, le=1000)] = 10
    """Connections at most; further lookups wait for one of them."""

    @model_validator(mode="after")
    def _min_is_not_above_max(self) -> Self:
        if self.min > self.max:
            raise ValueError("min must not be greater than max")
        return self


class NotifyOptions(Options):
    """Notifications of changes, by LISTEN and NOTIFY."""

    channel: Name = "idv_users"
    """The channel on which the database notifies of changes."""
    dsn: DsnSecret | None = None
    """The connection URI for LISTEN, where that of the backend leads to a pooler or a standby."""


class PostgresOptions(BackendOptions):
    """The options of the kind ``postgres``, beside those of every backend."""

    dsn: DsnSecret
    """The connection URI: ``postgresql://user:password@host1:5432,host2:5432/database``."""
    table: Annotated[str, Field(min_length=1, pattern=r"^[^\x00.]+(\.[^\x00.]+)?$")] = "users"
    """The table or view that holds one user in each row, as ``name`` or ``schema.name``."""
    columns: Columns = Columns()
    """The names of the table's columns, where they are not the usual ones."""
    by_nickname: Sql | None = None
    """The SELECT for the nickname ``$1``, instead of ``table``."""
    by_card: Sql | None = None
    """The SELECT for the card number ``$1``, instead of ``table``."""
    pool: PoolOptions = PoolOptions()
    """The connections for lookups."""
    prepared_statements: bool = True
    """Whether statements are prepared once for each connection; false behind a pooler."""
    notify: NotifyOptions | None = None
    """Notifications by which the database purges cached answers; off unless given."""
    max_lag: Annotated[Duration, Field(ge=0.1)] = 1.0
    """How far a standby may be behind its primary for "not found" to count."""
    max_removed: Percentage = "2%"
    """The share of the users that ``tornado-idv users import`` may remove."""

    @model_validator(mode="after")
    def _table_or_queries(self) -> Self:
        if self.queries and {"table", "columns"} & self.model_fields_set:
            raise ValueError("write either table and columns, or by_nickname and by_card")
        return self

    @model_validator(mode="after")
    def _notifications_arrive(self) -> Self:
        if not self.prepared_statements and self.notify is not None and self.notify.dsn is None:
            raise ValueError(
                "notify: a pooler in transaction mode, as prepared_statements: false is for, does "
                "not pass notifications on; write notify.dsn, the URI of the server itself"
            )
        return self

    @property
    def quoted_table(self) -> str:
        """The table, quoted as an SQL identifier."""
        return quoted_table(self.table)

    @property
    def primary_dsn(self) -> SecretStr:
        """The connection URI past a pooler and standbys: that of ``notify``, if it has one."""
        return (self.notify and self.notify.dsn) or self.dsn

    @property
    def queries(self) -> dict[type[Query], str]:
        """The operator's own queries, by what they look up; none if lookups read ``table``."""
        both = ((ByNickname, self.by_nickname), (ByCard, self.by_card))
        return {kind: query for kind, query in both if query is not None}
