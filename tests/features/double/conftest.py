"""A folder to use the command line in."""

from support.fixtures.admin import service, users  # noqa: F401
