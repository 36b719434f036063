"""The simulation of caches in several processes; it was compared with real ones by ``--check``."""

import pytest

from benchmarks.scale import Load, simulate


def shares(load: Load, processes: int, *, shared: bool = False) -> tuple[float, float]:
    made = simulate(load, processes, shared=shared, seconds=20, warm_up=10)
    return made.hits, made.backend


def test_more_processes_hit_less_often_and_look_up_more_unless_they_share_a_tier() -> None:
    limited = Load(rate=200, users=500, ttl=10, entries=200)
    made = [shares(limited, count) for count in (1, 2, 4, 8)]
    assert made == sorted(made, reverse=True)
    unlimited = Load(rate=200, users=500, ttl=10, entries=500)
    alone = pytest.approx(shares(unlimited, 1)[1], rel=0.02)
    assert [shares(unlimited, count, shared=True)[1] for count in (1, 8)] == [alone, alone]


def test_one_user_is_looked_up_once_in_each_time_to_live() -> None:
    one = Load(rate=100, users=1, ttl=5)
    assert shares(one, 1)[1] == pytest.approx(1 / (100 * 5), rel=0.01)
