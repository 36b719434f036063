"""When a process that has ended is started again."""

from __future__ import annotations

import socket

import pytest

from tornado_idv.errors import StartError
from tornado_idv.workers.child import Child, Slot


@pytest.fixture
def slot() -> Slot:
    return Slot("worker 1", lambda _: 0)


def end(slot: Slot, *, lived: float | None) -> float:
    """End a process that served so many seconds, or not at all; return the pause."""
    with socket.socket() as sock:
        slot.child = Child("worker 1", 1, sock, 0.0)
    if lived is not None:
        slot.child.ready_at = 100.0
    return slot.on_exit(slot.child, "SIGKILL", 100.0 + (lived or 0.0))


def test_process_that_served_is_replaced_at_once(slot: Slot) -> None:
    assert [end(slot, lived=1.0) for _ in range(20)] == [0.0] * 20


@pytest.mark.parametrize("lived", [None, 0.5], ids=["never served", "served briefly"])
def test_failures_in_a_row_have_growing_pauses(slot: Slot, lived: float | None) -> None:
    pauses = [end(slot, lived=lived) for _ in range(8)]
    assert pauses == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert slot.start_at == 110.0 + (lived or 0.0)


def test_pauses_begin_again_after_a_process_that_served(slot: Slot) -> None:
    for lived in (None, None, None, 2.0):
        end(slot, lived=lived)
    assert [end(slot, lived=None) for _ in range(2)] == [0.5, 1.0]


def test_reason_of_a_failed_start_is_kept(slot: Slot) -> None:
    end(slot, lived=None)
    assert str(slot.error) == "worker 1 (pid 1) ended during the start: SIGKILL"
    slot.error = StartError("cannot open members.db")
    end(slot, lived=None)
    assert str(slot.error) == "cannot open members.db"
