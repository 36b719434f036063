"""One service for each kind of backend, and one on Tornado's server."""

from support.fixtures.contract import checker, client, either, tornado_client, wire  # noqa: F401
