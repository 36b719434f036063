"""Lists of users in CSV, and the options with which any list is imported."""

from collections.abc import Sequence

from tornado_idv import User

HEADER = "nickname,card_number,plan,profile_url\n"
ANY_LIST = ("--max-rejected", "100%", "--max-removed", "100%")
"""Import also a list of a few users, most of which are rejected, in place of all others."""


def csv_row(user: User) -> str:
    """Return the line of a user; no value has a comma or a quote."""
    return ",".join([user.nickname, user.card_number, user.plan, user.profile_url or ""]) + "\n"


def cells(user: User) -> tuple[str | None, ...]:
    """Return the row of a user in a table."""
    return user.nickname, user.card_number, user.plan, user.profile_url


def insert_statement(*rows: Sequence[str | None]) -> str:
    """Return the SQL that puts rows into the table ``users``, if there are any."""
    values = ", ".join(f"({', '.join(map(_literal, row))})" for row in rows)
    return f"INSERT INTO users VALUES {values};" if rows else ""


def _literal(value: str | None) -> str:
    return "NULL" if value is None else "'{}'".format(value.replace("'", "''"))
