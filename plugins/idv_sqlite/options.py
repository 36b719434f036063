"""The options of a backend of the kind ``sqlite``."""

from typing import Annotated

from pydantic import Field

from tornado_idv import BackendOptions, ConfigPath, Options, Percentage, WholeNumber

Name = Annotated[str, Field(min_length=1)]


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


class SqliteOptions(BackendOptions):
    """The options of a backend of the kind ``sqlite``."""

    path: ConfigPath
    """The SQLite file. A relative path starts at the folder of the configuration file."""
    table: Name = "users"
    """The table or view with one user per row."""
    columns: Columns = Columns()
    """The names of the table's columns."""
    readers: Annotated[WholeNumber, Field(ge=1, le=16)] = 1
    """The number of connections for lookups. More than one helps only with slow queries."""
    max_removed: Percentage = "2%"
    """The maximum percentage of users that ``tornado-idv users import`` may remove."""

    @property
    def column_names(self) -> dict[str, str]:
        """The names of the columns by field of a `User`."""
        url = self.columns.profile_url or "profile_url"
        return {**self.columns.model_dump(), "profile_url": url}
