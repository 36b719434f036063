"""A command for several processes has one result, whatever becomes of them."""

from __future__ import annotations

from math import inf
from typing import cast

import pytest

from tornado_idv.workers.channel import Message
from tornado_idv.workers.child import Child
from tornado_idv.workers.fan_out import Command, FanOut, Replies, Steps


class Process:
    """Collects what it is sent."""

    def __init__(self, pid: int) -> None:
        self.name = f"worker {pid}"
        self.pid = pid
        self.received: list[Message] = []

    def send(self, message: Message) -> None:
        self.received.append(message)


class Harness(FanOut):
    """Two processes, and the replies to each command."""

    def __init__(self, now: float = 0.0) -> None:
        super().__init__(lambda: now)
        self.first, self.second = Process(1), Process(2)
        self.children = cast("list[Child]", [self.first, self.second])
        self.done: list[Replies] = []

    def send(self, *recipients: Process, args: Message | None = None, timeout: float = 5.0) -> None:
        def steps() -> Steps:
            children = cast("list[Child]", list(recipients))
            self.done.append((yield Command(children, "purge", args or {}, timeout)))

        self.run(steps())

    def receive(self, process: Process, **outcome: object) -> None:
        message = {"op": "reply", "id": process.received[-1]["id"], **outcome}
        self.on_reply(cast("Child", process), message)


@pytest.fixture
def fan_out() -> Harness:
    return Harness()


def test_command_is_done_when_every_process_has_replied(fan_out: Harness) -> None:
    first, second = fan_out.first, fan_out.second
    fan_out.send(first, second, args={"all": True})
    assert first.received == [{"op": "do", "id": 1, "command": "purge", "args": {"all": True}}]
    fan_out.receive(second, result=None)
    assert not fan_out.done
    fan_out.receive(first, error="KeyError")
    assert fan_out.done == [
        [
            {"name": "worker 2", "pid": 2, "result": None},
            {"name": "worker 1", "pid": 1, "error": "KeyError"},
        ]
    ]


def test_process_that_ends_is_not_waited_for(fan_out: Harness) -> None:
    fan_out.send(fan_out.first, fan_out.second)
    fan_out.receive(fan_out.second, result=None)
    fan_out.on_exit(fan_out.children[0])
    assert {"name": "worker 1", "pid": 1, "ended": True} in fan_out.done[0]
    assert fan_out.children == [fan_out.second]


def test_process_that_ends_is_waited_for_by_no_command(fan_out: Harness) -> None:
    fan_out.send(fan_out.first)
    fan_out.send(fan_out.first)
    fan_out.on_exit(fan_out.children[0])
    assert fan_out.done == [[{"name": "worker 1", "pid": 1, "ended": True}]] * 2


def test_process_without_a_reply_in_time_is_an_error(fan_out: Harness) -> None:
    fan_out.send(fan_out.first)
    assert fan_out.next_deadline == 5.0
    fan_out.expire(4.9)
    assert not fan_out.done
    fan_out.expire(5.0)
    assert fan_out.done == [[{"name": "worker 1", "pid": 1, "error": "no reply in time"}]]
    fan_out.receive(fan_out.first, result=None)
    assert len(fan_out.done) == 1


def test_second_reply_of_a_process_counts_for_no_other(fan_out: Harness) -> None:
    fan_out.send(fan_out.first, fan_out.second)
    fan_out.receive(fan_out.second, result=None)
    fan_out.receive(fan_out.second, result=None)
    assert not fan_out.done


def test_command_without_recipients_is_done_at_once(fan_out: Harness) -> None:
    fan_out.send()
    assert fan_out.done == [[]]


def test_next_command_is_sent_after_the_replies_to_the_one_before(fan_out: Harness) -> None:
    replies: list[Replies] = []

    def steps() -> Steps:
        first: Replies = yield Command(fan_out.children, "prepare", {}, 5.0)
        second: Replies = yield Command(fan_out.children, "commit", {}, 5.0)
        replies.extend([first, second])

    fan_out.run(steps())
    for name in ("prepare", "commit"):
        processes = (fan_out.first, fan_out.second)
        assert [each.received[-1]["command"] for each in processes] == [name, name]
        fan_out.receive(fan_out.first, result=name)
        fan_out.receive(fan_out.second, result=name)
    assert [[each["result"] for each in some] for some in replies] == [
        ["prepare", "prepare"],
        ["commit", "commit"],
    ]


def test_command_without_recipients_has_no_replies_of_the_one_before(fan_out: Harness) -> None:
    replies: list[Replies] = []

    def steps() -> Steps:
        replies.append((yield Command(fan_out.children[:1], "prepare", {}, 5.0)))
        replies.append((yield Command([], "commit", {}, 5.0)))

    fan_out.run(steps())
    fan_out.receive(fan_out.first, result="prepare")
    assert replies == [[{"name": "worker 1", "pid": 1, "result": "prepare"}], []]


def test_command_with_the_earliest_deadline_is_ended_first() -> None:
    fan_out = Harness(100.0)
    assert fan_out.next_deadline == inf
    for timeout in (5.0, 0.5, 2.0):
        fan_out.send(fan_out.first, timeout=timeout)
    for count, deadline in enumerate([100.5, 102.0, 105.0]):
        assert fan_out.next_deadline == deadline
        fan_out.expire(deadline - 0.1)
        assert len(fan_out.done) == count
        fan_out.expire(deadline)
        assert len(fan_out.done) == count + 1
