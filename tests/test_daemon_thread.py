"""Calls in daemon threads."""

from threading import Thread

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
