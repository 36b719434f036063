"""No script of faults makes a client take a user for missing."""

from __future__ import annotations

import pytest

from support.faults.client_scripts import run
from support.http.clients import KINDS, Kind

pytestmark = [
    pytest.mark.slow,
    # A connection that a client gave up before the server accepted it is closed by the collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.mark.parametrize("kind", KINDS)
async def test_no_fault_is_taken_for_not_found(kind: Kind) -> None:
    results = await run(kind, scripts=150, seed=7)
    assert not results.wrong
    assert {"None", "found", "Unexpected", "Undetermined"} <= set(results.results)
