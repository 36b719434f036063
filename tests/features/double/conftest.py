"""A folder to use the command line in."""

from support.fixtures.admin import service  # noqa: F401
