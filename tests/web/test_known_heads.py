"""What the fast path keeps, and what its responses are counted as."""

import time
import tracemalloc
from collections.abc import Callable

import pytest

from support.http.in_process import Counted, Harness, ask_for
from tornado_idv import model
from tornado_idv.http import connection
from tornado_idv.http.connection_table import HttpLimits
from tornado_idv.http.serving import Serving
from tornado_idv.web.app import make_api
from tornado_idv.web.fast_path import known_heads
from tornado_idv.web.fast_path.known_heads import KnownHeads

ALICE = ask_for("alice")


@pytest.fixture
def harness(make_harness: Callable[..., Harness]) -> Harness:
    """It knows the head of a client."""
    harness = make_harness()
    harness.ask(ALICE, ALICE)
    return harness


def fast_path(harness: Harness) -> KnownHeads:
    assert harness.fast_path is not None
    return harness.fast_path


def bodies(harness: Harness) -> list[bytes]:
    """The bodies whose meaning is kept."""
    return [*fast_path(harness)._bodies["identify/url"]]  # noqa: SLF001 - the size of a table


def test_body_is_kept_when_its_answer_is_cached(harness: Harness) -> None:
    """One that is looked up may never come again."""
    assert bodies(harness) == []
    harness.ask(ALICE)
    assert bodies(harness) == [ALICE[-19:]]
    harness.ask(ask_for("nobody"))
    assert len(bodies(harness)) == 1
    harness.ask(ask_for("nobody"))
    assert len(bodies(harness)) == 2


def test_time_of_a_response_is_counted_in_seconds(harness: Harness) -> None:
    counted, began = harness.counters.responses["identify/url", "ok"], time.monotonic()
    before = counted.seconds
    harness.ask(ALICE)
    assert counted.seconds - before <= time.monotonic() - began


def test_a_longer_body_than_the_service_takes_is_rejected(harness: Harness) -> None:
    """Though its head is known; the limit may be below that of the fast path."""
    heads = KnownHeads(fast_path(harness).api, 25)
    assert KnownHeads(heads.api, 16_384).max_body == 1024, "a service keeps many bodies"
    app = Counted(make_api(heads.api, known_heads=heads))
    limits = HttpLimits(max_body=25)
    harness.server.replace(Serving(app, lambda *_: b"too long", limits, heads.connect))
    client = harness.ask(ALICE, ALICE, ALICE)
    assert app.asked == 2
    client.send(ask_for("alice", pad=7))
    assert app.asked == 2
    assert client.socket.sent.endswith(b"too long")


def test_the_oldest_bodies_are_evicted(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_heads, "_MAX_BODIES", 3)
    harness.ask(*(ask_for("alice", pad=pad) for pad in range(1, 6)))
    assert [len(each) for each in bodies(harness)] == [22, 23, 24]


@pytest.mark.slow
@pytest.mark.parametrize(("pad", "most"), [(0, 420), (990, 1600)], ids=["short", "long"])
def test_bodies_take_no_more_memory_than_their_bound(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, pad: int, most: int
) -> None:
    bound = 200
    monkeypatch.setattr(known_heads, "_MAX_BODIES", bound)
    client = harness.call()
    names = [f"{number:08}" for number in range(2 * bound)]
    for name in names:
        client.send(ask_for(name, pad=pad))
    harness.logged.clear()
    tracemalloc.start()
    try:
        for name in names:
            client.send(ask_for(name, pad=pad))
        snapshot = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    # Only what is allocated here: services of other tests may run in threads of this process.
    files = (connection.__file__, known_heads.__file__, model.__file__)
    ours = snapshot.filter_traces(
        [tracemalloc.Filter(inclusive=True, filename_pattern=file) for file in files]
    )
    assert bound * pad < sum(trace.size for trace in ours.traces) < bound * most
