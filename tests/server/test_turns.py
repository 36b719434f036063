"""Turns are taken one at a time, and the event loop has its own in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tornado_idv.server.turns import Turns


@dataclass(frozen=True)
class Caller:
    """One who does something with its turn."""

    advance: Callable[[], None]


def noting(done: list[str], name: str) -> Caller:
    return Caller(partial(done.append, name))


async def test_each_has_its_turn_in_order_and_the_loop_in_between() -> None:
    done: list[str] = []
    turns = Turns(asyncio.get_running_loop())
    for name in ("first", "second"):
        turns.wait(noting(done, name))
    assert done == []
    for _ in range(2):
        await asyncio.sleep(0)
        done.append("the loop")
    assert done == ["first", "the loop", "second", "the loop"]


async def test_who_asks_twice_waits_once() -> None:
    done: list[str] = []
    turns = Turns(asyncio.get_running_loop())
    turn = noting(done, "its turn")
    for _ in range(2):
        turns.wait(turn)
    for _ in range(3):
        await asyncio.sleep(0)
    assert done == ["its turn"]


async def test_who_leaves_has_no_turn() -> None:
    done: list[str] = []
    turns = Turns(asyncio.get_running_loop())
    first, second, third = (noting(done, name) for name in ("first", "second", "third"))
    for turn in (first, second):
        turns.wait(turn)
    turns.leave(first)
    turns.leave(third)
    assert first not in turns
    assert second in turns
    for _ in range(3):
        await asyncio.sleep(0)
    turns.wait(third)
    turns.leave(third)
    await asyncio.sleep(0)
    assert done == ["second"]


async def test_who_asks_for_another_turn_is_the_last() -> None:
    done: list[str] = []
    turns = Turns(asyncio.get_running_loop())

    def again() -> None:
        done.append("once")
        turns.wait(noting(done, "twice"))

    turns.wait(Caller(again))
    turns.wait(noting(done, "another"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert done == ["once", "another", "twice"]


async def test_one_that_fails_takes_nobody_s_turn() -> None:
    loop, done = asyncio.get_running_loop(), list[str]()
    told: list[object] = []
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    turns = Turns(loop)
    error = ValueError()

    def fail() -> None:
        raise error

    turns.wait(Caller(fail))
    turns.wait(noting(done, "the next"))
    for _ in range(2):
        await asyncio.sleep(0)
    assert (told, done) == ([error], ["the next"])
