"""The simulation of caches in several processes; it was compared with real ones by ``--check``."""

from __future__ import annotations

import pytest

from benchmarks.scale import Load, simulate

LOAD = Load(rate=200, users=500, ttl=10, entries=200)


def shares(processes: int, *, shared: bool = False, load: Load = LOAD) -> tuple[float, float]:
    made = simulate(load, processes, shared=shared, seconds=20, warm_up=10)
    return made.hits, made.backend


def test_more_processes_hit_less_often_and_look_up_more() -> None:
    made = [shares(count) for count in (1, 2, 4, 8)]
    assert made == sorted(made, reverse=True)


def test_lookups_behind_a_shared_tier_do_not_depend_on_the_number_of_processes() -> None:
    unlimited = Load(rate=200, users=500, ttl=10, entries=500)
    alone = shares(1, load=unlimited)[1]
    for count in (1, 8):
        assert shares(count, shared=True, load=unlimited)[1] == pytest.approx(alone, rel=0.02)


def test_one_user_is_looked_up_once_in_each_time_to_live() -> None:
    one = Load(rate=100, users=1, ttl=5)
    assert shares(1, load=one)[1] == pytest.approx(1 / (100 * 5), rel=0.01)
