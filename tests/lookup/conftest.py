"""A cache whose time a test moves."""

from support.fakes.caches import cache, ticker  # noqa: F401
