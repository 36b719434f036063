"""The options of a backend of the kind ``postgres``."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
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
    """A validated URI."""

    uris: Mapping[str, str]
    """A URI for each host, by its address, in the order of the list."""
    roles: Sequence[str]
    """The values for ``target_session_attrs``; each is tried with every host before the next."""
    name: str
    """Hosts and database, for messages."""

    @classmethod
    def parse(cls, text: str) -> Dsn:
        """Parse a URI; raises `ValueError`."""
        parts = _URI.fullmatch(text)
        start, hosts, path, options = parts.groups("") if parts else [""] * 4
        uris = {}
        for host in hosts.split(","):
            address = host if ":" in host.rpartition("]")[2] else f"{host}:5432"
            uris[address] = f"{start}{host}{path}{options}"
        try:
            # Host by host, as for asyncpg: most releases of Python refuse a list with IPv6.
            first, *_ = [urlsplit(uri).query for uri in uris.values()]
            query = parse_qs(first, strict_parsing=True) if first else {}
        except ValueError:
            parts = None
        if parts is None:
            raise ValueError(
                "not a connection URI; write postgresql://user:password@host:5432/database, and "
                "percent-encode special characters in the password (@ as %40, / as %2F)"
            )
        for name, allowed in (("target_session_attrs", _ROLES), ("sslmode", _TLS_MODES)):
            if query.get(name, allowed)[-1] not in allowed:
                raise ValueError(f"{name} must be one of: {', '.join(allowed)}")
        role = query.get("target_session_attrs", ["any"])[-1]
        roles = {"prefer-standby": ("standby", "any")}.get(role, (role,))
        if role == "any" and len(uris) > 1:
            roles = ("primary", "any")
        return cls(uris, roles, f"postgresql://{hosts}{path}")


NOT_INSTALLED = (
    f"asyncpg is not installed; install it with: {sys.executable} -m pip install 'asyncpg>=0.30,<1'"
)
"""The advice names the library, because this project publishes no package."""
Name = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[^\x00]+$")]
Sql = Annotated[str, Field(min_length=1, pattern=r"^[^\x00]+$")]


def _dsn(secret: SecretStr) -> SecretStr:
    Dsn.parse(secret.get_secret_value())
    return secret


DsnSecret = Annotated[SecretUrl, AfterValidator(_dsn)]


class Columns(Options):
    """The columns of the table; every value is text."""

    nickname: Name = "nickname"
    """The nickname, without a leading ``@``."""
    card_number: Name = "card_number"
    """The card number, as text, because a number loses leading zeros."""
    plan: Name = "plan"
    """The plan."""
    profile_url: Name | None = None
    """The profile URL; by default the column ``profile_url``, which the table may lack."""


class PoolOptions(Options):
    """The connections of one process."""

    min: Annotated[WholeNumber, Field(ge=0, le=1000)] = 1
    """Connections at the start."""
    max: Annotated[WholeNumber, Field(ge=1, le=1000)] = 10
    """Maximum number of connections; if all are in use, lookups wait."""

    @model_validator(mode="after")
    def _min_is_not_above_max(self) -> Self:
        if self.min > self.max:
            raise ValueError("min must not be greater than max")
        return self


class NotifyOptions(Options):
    """Notifications of changes, by LISTEN and NOTIFY."""

    channel: Name = "idv_users"
    """The channel of the notifications."""
    dsn: DsnSecret | None = None
    """The connection URI for LISTEN; needed if ``dsn`` leads to a pooler or to standbys alone."""


class PostgresOptions(BackendOptions):
    """The options of the kind ``postgres``, in addition to those of every backend."""

    dsn: DsnSecret
    """The connection URI: ``postgresql://user:password@host1:5432,host2:5432/database``."""
    table: Annotated[str, Field(min_length=1, pattern=r"^[^\x00.]+(\.[^\x00.]+)?$")] = "users"
    """The table or view with one user in each row, as ``name`` or ``schema.name``."""
    columns: Columns = Columns()
    """The names of the table's columns."""
    by_nickname: Sql | None = None
    """The SELECT for the nickname ``$1``, instead of ``table``."""
    by_card: Sql | None = None
    """The SELECT for the card number ``$1``, instead of ``table``."""
    pool: PoolOptions = PoolOptions()
    """The connections for lookups."""
    prepared_statements: bool = True
    """Prepare each statement once for each connection; write false behind a pooler."""
    notify: NotifyOptions | None = None
    """Notifications of the database that purge cached answers; off by default."""
    max_lag: Annotated[Duration, Field(ge=0.1)] = 1.0
    """How far a standby may be behind its primary for "not found" to count."""
    max_removed: Percentage = "2%"
    """The largest share of the users for ``tornado-idv users import`` to remove."""

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
    def channel(self) -> str:
        """The channel of the notifications, also without ``notify``."""
        return (self.notify or NotifyOptions()).channel

    @property
    def primary_dsn(self) -> SecretStr:
        """The connection URI past a pooler and standbys: ``notify.dsn``, or ``dsn``."""
        return (self.notify and self.notify.dsn) or self.dsn

    @property
    def queries(self) -> dict[type[Query], str]:
        """The operator's own queries, by their kind; none if lookups read ``table``."""
        both = ((ByNickname, self.by_nickname), (ByCard, self.by_card))
        return {kind: query for kind, query in both if query is not None}

    @property
    def unique_indexes(self) -> Iterator[tuple[str, str, str]]:
        """Column, name and key of each of the two indexes for lookups."""
        names, base = self.columns, self.table.rpartition(".")[2]
        for column, folds in ((names.nickname, self.folds_nicknames), (names.card_number, False)):
            key = f"lower({quoted(column)})" if folds else quoted(column)
            yield column, quoted(f"{base}_{column}{'_lower' if folds else ''}"), key
