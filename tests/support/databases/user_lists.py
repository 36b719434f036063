"""Lists of users in CSV, and the options with which any list is imported."""

from __future__ import annotations

from tornado_idv import User

HEADER = "nickname,card_number,plan,profile_url\n"
ANY_LIST = ("--max-rejected", "100%", "--max-removed", "100%")
"""Import also a list of a few users, most of which are rejected, in place of all others."""


def csv_row(user: User) -> str:
    """Return the line of a user; no value has a comma or a quote."""
    return ",".join([user.nickname, user.card_number, user.plan, user.profile_url or ""]) + "\n"
