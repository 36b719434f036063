"""A folder to use the command line in, and a cache whose time a test moves."""

from support.fakes.caches import cache, ticker  # noqa: F401
from support.fixtures.commands import config, folder, source, users  # noqa: F401
