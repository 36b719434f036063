"""Configurations of a chain, and the few users and queries of all histories."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from support.model.recording_backends import Fault
from tornado_idv.interfaces.backend import BackendOptions, BreakerOptions
from tornado_idv.lookup.cache import CacheLimits
from tornado_idv.model import ByCard, ByNickname, Query

_BOTH = frozenset[type[Query]]({ByNickname, ByCard})
_CARDS = frozenset[type[Query]]({ByCard})
NICKNAMES = ("alice", "bob")
CARD_NUMBERS = ("1", "2")
QUERIES: Sequence[Query] = (*map(ByNickname, NICKNAMES), *map(ByCard, CARD_NUMBERS))


Kind = tuple[BackendOptions, frozenset[type[Query]]]
"""The options of one backend, and the queries that it serves."""


def kind(serves: frozenset[type[Query]], **options: Any) -> Kind:
    breaker = BreakerOptions(failures=2, open_for=5.0, open_max=20.0)
    return BackendOptions(name="a", kind="recording", breaker=breaker, **options), serves


@dataclass(frozen=True, slots=True)
class Setup:
    """One configuration and its initial users; ``chance`` is the cache's source of jitter."""

    kinds: tuple[Kind, ...]
    users: tuple[tuple[int, str, str], ...]
    limits: CacheLimits
    chance: float
    refreshes: bool


WHICH = st.integers(0, 2)
"""The index of a backend, modulo their number."""
INDEX = st.integers(0, 5)
"""The index of an item, modulo their number."""
ASKED = st.lists(st.sampled_from(QUERIES), min_size=1, max_size=3)
"""Queries of concurrent lookups."""
FAULTS = (None, None, None, Fault.UNAVAILABLE, Fault.UNAVAILABLE, Fault.BROKEN, *Fault)
"""The fault of a backend from now on, the likely ones first."""
KINDS = st.builds(
    kind,
    on_unavailable=st.sampled_from(["continue", "continue", "fail"]),
    serves=st.sampled_from([_BOTH, _BOTH, _BOTH, _CARDS]),
    cache_ttl=st.sampled_from([None, None, 20.0]),
    negative_ttl=st.sampled_from([None, None, 10.0]),
    max_concurrent=st.sampled_from([64, 64, 1]),
    timeout=st.sampled_from([1.0, 1.5]),
    match=st.sampled_from([None, None, None, "@a.*"]),
)
SETUPS = st.builds(
    Setup,
    kinds=st.lists(KINDS, min_size=2, max_size=3).map(tuple),
    users=st.lists(
        st.tuples(WHICH, st.sampled_from(NICKNAMES), st.sampled_from(CARD_NUMBERS)),
        min_size=2,
        max_size=6,
    ).map(tuple),
    limits=st.builds(
        CacheLimits,
        ttl=st.just(100.0),
        negative_ttl=st.just(20.0),
        max_entries=st.sampled_from([100, 100, 2]),
        max_negative_entries=st.sampled_from([100, 2]),
        stale_if_error=st.just(200.0),
        degraded_ttl=st.just(10.0),
    ),
    chance=st.sampled_from([0.0, 0.5, 1.0]),
    refreshes=st.booleans(),
)
