"""A cache whose time a test moves."""

from support.fixtures.caches import cache, ticker  # noqa: F401
