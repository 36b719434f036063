"""Services over two different servers of PostgreSQL or Redis, during changes of the primary."""

import asyncio
from functools import partial

import pytest

from soak.harness import Site
from soak.oracle import ENGINES, Harness, run_in_order
from support.processes.proxies import not_installed


def _run(name: str, scenario: str) -> Site:
    engine = ENGINES[name]
    if not engine.is_installed:
        pytest.skip(not_installed(str(engine.needs)))
    harness: Harness = partial(engine.harness, only=[scenario])
    (site,) = asyncio.run(run_in_order(harness))
    assert site.violations == []
    assert site.tallies[scenario].outcomes["fresh"]
    return site


@pytest.mark.slow
def test_lookups_go_back_to_the_primary_while_its_standby_is_behind() -> None:
    """After a restart of the primary, a standby that lags behind hides no new user."""
    site = _run("failover-postgres", "replay paused, primary restarted")
    assert site.tallies["replay paused, primary restarted"].outcomes["503"]


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["partition with a Sentinel", "SENTINEL FAILOVER"])
def test_failover_is_followed(scenario: str) -> None:
    """Edits and purges reach all services, also while the old primary still responds."""
    _run("failover-redis", scenario)
