"""A command for several processes has one result, whatever becomes of them."""

from __future__ import annotations

from math import inf

import pytest

from tornado_idv.workers.control import Message
from tornado_idv.workers.fan_out import FanOut, Replies


class Process:
    """Collects what it is sent."""

    def __init__(self, pid: int) -> None:
        self.name = f"worker {pid}"
        self.pid = pid
        self.received: list[Message] = []

    def send(self, message: Message) -> None:
        self.received.append(message)


@pytest.fixture
def done() -> list[Replies]:
    return []


def reply(process: Process, **outcome: object) -> Message:
    return {"op": "reply", "id": process.received[-1]["id"], **outcome}


def test_command_is_done_when_every_process_has_replied(done: list[Replies]) -> None:
    fan_out, (first, second) = FanOut(lambda: 0.0), (Process(1), Process(2))
    fan_out.send([first, second], "purge", {"all": True}, 5.0, done.append)
    assert first.received == [{"op": "do", "id": 1, "command": "purge", "args": {"all": True}}]
    fan_out.on_reply(second, reply(second, result=None))
    assert not done
    fan_out.on_reply(first, reply(first, error="KeyError"))
    assert done == [
        [
            {"name": "worker 2", "pid": 2, "result": None},
            {"name": "worker 1", "pid": 1, "error": "KeyError"},
        ]
    ]


def test_process_that_ends_is_not_waited_for(done: list[Replies]) -> None:
    fan_out, (first, second) = FanOut(lambda: 0.0), (Process(1), Process(2))
    fan_out.send([first, second], "purge", {}, 5.0, done.append)
    fan_out.on_reply(second, reply(second, result=None))
    fan_out.on_exit(first)
    assert {"name": "worker 1", "pid": 1, "ended": True} in done[0]


def test_process_without_a_reply_in_time_is_an_error(done: list[Replies]) -> None:
    fan_out, process = FanOut(lambda: 0.0), Process(1)
    fan_out.send([process], "purge", {}, 5.0, done.append)
    assert fan_out.next_deadline == 5.0
    fan_out.expire(4.9)
    assert not done
    fan_out.expire(5.0)
    assert done == [[{"name": "worker 1", "pid": 1, "error": "no reply in time"}]]
    fan_out.on_reply(process, reply(process, result=None))
    assert len(done) == 1


def test_second_reply_of_a_process_counts_for_no_other(done: list[Replies]) -> None:
    fan_out, (first, second) = FanOut(lambda: 0.0), (Process(1), Process(2))
    fan_out.send([first, second], "purge", {}, 5.0, done.append)
    fan_out.on_reply(second, reply(second, result=None))
    fan_out.on_reply(second, reply(second, result=None))
    assert not done


def test_command_without_recipients_is_done_at_once(done: list[Replies]) -> None:
    FanOut(lambda: 0.0).send([], "purge", {}, 5.0, done.append)
    assert done == [[]]


def test_command_with_the_earliest_deadline_is_ended_first(done: list[Replies]) -> None:
    fan_out, process = FanOut(lambda: 100.0), Process(1)
    assert fan_out.next_deadline == inf
    for timeout in (5.0, 0.5, 2.0):
        fan_out.send([process], "report", {}, timeout, done.append)
    for count, deadline in enumerate([100.5, 102.0, 105.0]):
        assert fan_out.next_deadline == deadline
        fan_out.expire(deadline - 0.1)
        assert len(done) == count
        fan_out.expire(deadline)
        assert len(done) == count + 1
