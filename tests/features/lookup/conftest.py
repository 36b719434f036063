"""A folder to use the command line in."""

from support.fixtures.commands import config, folder, source, users  # noqa: F401
