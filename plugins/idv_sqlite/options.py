"""The options of a backend of the kind ``sqlite``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tornado_idv import BackendOptions, ConfigPath, Options, Percentage, WholeNumber

Name = Annotated[str, Field(min_length=1)]


class Columns(Options):
    """The columns of the table; every value in them is text."""

    nickname: Name = "nickname"
    """The nickname, without ``@`` in front."""
    card_number: Name = "card_number"
    """The card number, declared as text so that zeros in front stay."""
    plan: Name = "plan"
    """The plan."""
    profile_url: Name | None = None
    """The profile URL; if not given, the column ``profile_url``, if the table has one."""


class SqliteOptions(BackendOptions):
    """The options of the kind ``sqlite``, beside those of every backend."""

    path: ConfigPath
    """The SQLite file; a relative path starts at the folder of the configuration file."""
    table: Name = "users"
    """The table or view that holds one user in each row."""
    columns: Columns = Columns()
    """The names of the table's columns, where they are not the usual ones."""
    readers: Annotated[WholeNumber, Field(ge=1, le=16)] = 1
    """Connections for lookups; more than one helps only where queries are slow."""
    max_removed: Percentage = "2%"
    """The share of the users that ``tornado-idv users import`` may remove."""

    @property
    def column_names(self) -> dict[str, str]:
        """The name of the column of each field."""
        url = self.columns.profile_url or "profile_url"
        return {**self.columns.model_dump(), "profile_url": url}
