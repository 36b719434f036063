"""Calls in daemon threads."""

import threading
from threading import Event, Thread

import pytest

from tornado_idv.daemon_thread import DaemonThread


async def test_thread_that_cannot_start_does_not_block_later_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call = DaemonThread("test")

    def refuse(_: Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            call(int)
    assert await call(int) == 0


async def test_cancelled_call_still_ends_before_the_next_begins() -> None:
    call, may_end = DaemonThread("test"), Event()
    cancelled = call(may_end.wait, 20)
    following = call(may_end.is_set)
    cancelled.cancel()
    may_end.set()
    assert await following
    for each in (each for each in threading.enumerate() if each.name == "test"):
        each.join(20)  # pytest reports an error in it
