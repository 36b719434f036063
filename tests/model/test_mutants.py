"""The state machine finds the bugs that it is there for: a test of the test."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from support.model.mutants import Bug
from support.model.mutations import BUGS, hunt

_PROCESSES = 2


@pytest.fixture(scope="module")
def hunts() -> Iterator[Mapping[str, Future[str]]]:
    """All hunts, begun at once in a few processes of their own."""
    with ProcessPoolExecutor(_PROCESSES, get_context("spawn")) as pool:
        yield {bug.name: pool.submit(hunt, bug) for bug in BUGS}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_the_state_machine_finds(bug: Bug, hunts: Mapping[str, Future[str]]) -> None:
    """A promise is seen broken, and no other error."""
    assert hunts[bug.name].result(timeout=300)
