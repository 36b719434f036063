"""The options of a backend of the kind ``sqlite``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tornado_idv import BackendOptions, ConfigPath, Options, Percentage, WholeNumber

Name = Annotated[str, Field(min_length=1)]


class Columns(Options):
    """The columns of the table; every value in them is text."""

    nickname: Name = "nickname"
    """The nickname, without a leading ``@``."""
    card_number: Name = "card_number"
    """The card number, declared as text to keep leading zeros."""
    plan: Name = "plan"
    """The plan."""
    profile_url: Name | None = None
    """The profile URL; by default ``profile_url``, unless the table has no such column."""


class SqliteOptions(BackendOptions):
    """The options of the kind ``sqlite``, in addition to those of every backend."""

    path: ConfigPath
    """The SQLite file. A relative path starts at the folder of the configuration file."""
    table: Name = "users"
    """The table or view with one user per row."""
    columns: Columns = Columns()
    """The names of the table's columns; the defaults are the names of the fields."""
    readers: Annotated[WholeNumber, Field(ge=1, le=16)] = 1
    """Number of connections for lookups; more than one helps only with slow queries."""
    max_removed: Percentage = "2%"
    """Maximum percentage of the users that ``tornado-idv users import`` may remove."""

    @property
    def column_names(self) -> dict[str, str]:
        """The name of the column of each field."""
        url = self.columns.profile_url or "profile_url"
        return {**self.columns.model_dump(), "profile_url": url}
