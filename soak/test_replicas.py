"""Three services over one PostgreSQL cluster and one Redis server, during faults of either."""

import asyncio
from functools import partial

import pytest

from soak.harness import QUIET
from soak.oracle import rows, run_in_order
from soak.replicas import running_replicas
from support.databases.postgres_server import binaries
from support.processes.proxies import find_tool, not_installed

WITHOUT = ["PostgreSQL failed over"]
"""Scenarios to leave out. The failover of a hanging server is harder, and is included."""


@pytest.mark.slow
def test_replicas_send_no_wrong_response_and_follow_changes_while_servers_fail() -> None:
    """Each server is stopped, frozen, filled and cut off, and PostgreSQL fails over.

    All services recover within 8 s after a fault. Until then, 503 is allowed, but only for services
    that a fault of PostgreSQL affects. All services notice edits, purges and changes of keys within
    1 s. Unless the fault prevents this, they also notice changes during the fault.
    """
    if binaries() is None:
        pytest.skip(not_installed("PostgreSQL"))
    find_tool("redis-server")
    (site,) = asyncio.run(run_in_order(partial(running_replicas, without=WITHOUT)))
    assert site.violations == []
    assert sum(int(row["wrong"]) for row in rows([site])) == 0
    assert set(site.tallies) == {QUIET, *(each.name for each in site.scenarios)}
    assert all(tally.outcomes["fresh"] for tally in site.tallies.values())
    assert site.tallies["PostgreSQL frozen, failed over"].outcomes["503"]
