"""The options of a backend of the kind ``postgres``, and the parser of connection URIs."""

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
    """Return a name quoted as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


_ROLES = ("any", "primary", "standby", "prefer-standby", "read-write", "read-only")
_HOST = r"(?:\[[^\[\]@/?#,]*\]|[^@/?#,:\[\]]*)(?::[0-9]{0,5})?"
_URI = re.compile(
    rf"((?i:postgres(?:ql)?)://(?:[^@/?#\[\]]*@)?)({_HOST}(?:,{_HOST})*)(/[^@?#]*)?((?:\?[^@#]*)?)"
)
_TLS_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


@dataclass(frozen=True, slots=True)
class Dsn:
    """A validated connection URI."""

    uris: Mapping[str, str]
    """For the address of each host, in the configured order, a URI with this host alone."""
    roles: Sequence[str]
    """Values of ``target_session_attrs``. All hosts are tried with one, then with the next."""
    name: str
    """The hosts and the database, for messages."""

    @classmethod
    def parse(cls, text: str) -> "Dsn":
        """Parse a connection URI. Raises `ValueError`."""
        parts = _URI.fullmatch(text)
        start, hosts, path, options = parts.groups("") if parts else [""] * 4
        uris = {}
        for host in hosts.split(","):
            address = host if ":" in host.rpartition("]")[2] else f"{host}:5432"
            uris[address] = f"{start}{host}{path}{options}"
        try:
            # Each URI has one host: most releases of Python refuse a list with IPv6 addresses.
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
"""Error if asyncpg is missing, with the command that installs it."""
Name = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[^\x00]+$")]
Sql = Annotated[str, Field(min_length=1, pattern=r"^[^\x00]+$")]


def _dsn(secret: SecretStr) -> SecretStr:
    Dsn.parse(secret.get_secret_value())
    return secret


DsnSecret = Annotated[SecretUrl, AfterValidator(_dsn)]


class Columns(Options):
    """The names of the table's columns. All of them must contain text."""

    nickname: Name = "nickname"
    """The column of nicknames, without a leading ``@``."""
    card_number: Name = "card_number"
    """The column of card numbers. It must be text, because a number loses leading zeros."""
    plan: Name = "plan"
    """The column of plans."""
    profile_url: Name | None = None
    """The column of profile URLs. By default ``profile_url`` in a table with this column."""


class PoolOptions(Options):
    """The connections of one process for lookups."""

    min: Annotated[WholeNumber, Field(ge=0, le=1000)] = 1
    """The number of connections to open at the start."""
    max: Annotated[WholeNumber, Field(ge=1, le=1000)] = 10
    """The maximum number of connections. If all are in use, lookups wait."""

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
    """The connection URI for LISTEN. It is needed if the backend's ``dsn`` leads to a pooler, or
    only to standbys."""


class PostgresOptions(BackendOptions):
    """The options of a backend of the kind ``postgres``."""

    dsn: DsnSecret
    """The connection URI: ``postgresql://user:password@host1:5432,host2:5432/database``."""
    table: Annotated[str, Field(min_length=1, pattern=r"^[^\x00.]+(\.[^\x00.]+)?$")] = "users"
    """The table or view with one user per row, as ``name`` or ``schema.name``."""
    columns: Columns = Columns()
    """The names of the table's columns."""
    by_nickname: Sql | None = None
    """A SELECT that finds the user with the nickname ``$1``. It replaces ``table``."""
    by_card: Sql | None = None
    """A SELECT that finds the user with the card number ``$1``. It replaces ``table``."""
    pool: PoolOptions = PoolOptions()
    """The connections for lookups."""
    prepared_statements: bool = True
    """Prepare each statement once per connection. Behind a pooler, write false."""
    notify: NotifyOptions | None = None
    """Notifications of the database, which purge cached answers. They are off by default."""
    max_lag: Annotated[Duration, Field(ge=0.1)] = 1.0
    """The maximum lag of a standby behind its primary. Above it, lookups without a result fail."""
    max_removed: Percentage = "2%"
    """The maximum percentage of users that ``tornado-idv users import`` may remove."""

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.queries and {"table", "columns"} & self.model_fields_set:
            raise ValueError("write either table and columns, or by_nickname and by_card")
        if not self.prepared_statements and self.notify is not None and self.notify.dsn is None:
            raise ValueError(
                "notify: a pooler in transaction mode (prepared_statements: false) passes on no "
                "notifications; write notify.dsn, the URI of the server itself"
            )
        return self

    @property
    def quoted_table(self) -> str:
        return ".".join(map(quoted, self.table.split(".")))

    @property
    def channel(self) -> str:
        """The channel of notifications. If ``notify`` is not set, it is the default channel."""
        return (self.notify or NotifyOptions()).channel

    @property
    def primary_dsn(self) -> SecretStr:
        """The connection URI of the primary without a pooler: ``notify.dsn``, or else ``dsn``."""
        return (self.notify and self.notify.dsn) or self.dsn

    @property
    def queries(self) -> dict[type[Query], str]:
        """The operator's queries by kind. There are none if lookups read ``table``."""
        both = ((ByNickname, self.by_nickname), (ByCard, self.by_card))
        return {kind: query for kind, query in both if query is not None}

    @property
    def unique_indexes(self) -> Iterator[tuple[str, str, str]]:
        """The column, the name, and the indexed column or expression of each unique index."""
        names, base = self.columns, self.table.rpartition(".")[2]
        for column, folds in ((names.nickname, self.folds_nicknames), (names.card_number, False)):
            key = f"lower({quoted(column)})" if folds else quoted(column)
            yield column, quoted(f"{base}_{column}{'_lower' if folds else ''}"), key
