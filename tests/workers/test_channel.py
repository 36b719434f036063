"""The end of a control connection in a process, and how it ends the process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

import pytest

from support.fakes.clock_and_backends import LoopClock
from support.processes.control_channel import ControlEnd
from tornado_idv.errors import StartError
from tornado_idv.workers.channel import Channel, Message, encode, supervised

Serve = Callable[[Channel], Awaitable[int]]


@pytest.fixture
def control() -> Iterator[ControlEnd]:
    with ControlEnd() as control:
        yield control


async def run(control: ControlEnd, serve: Serve) -> int:
    task = asyncio.create_task(supervised(control.theirs, serve))
    await asyncio.wait([task], timeout=10)
    assert task.done()  # `wait_for` would cancel it, which it could take for a stop
    return task.result()


async def execute_nothing(_command: str, _args: Message) -> None:
    """Every process has commands."""


def without_heartbeats(messages: list[Message]) -> list[Message]:
    return [each for each in messages if each["op"] != "report"]


async def until_stopped(channel: Channel) -> int:
    await channel.stop.wait()
    return 17


@pytest.mark.parametrize("delay", [False, True])
async def test_process_stops_as_the_supervisor_says(control: ControlEnd, *, delay: bool) -> None:
    seen: list[bool] = []

    async def serve(channel: Channel) -> int:
        channel.serving(3, execute_nothing)
        await channel.stop.wait()
        seen.append(channel.delay)
        return 17

    control.send("drain", delay=delay)
    assert await run(control, serve) == 17
    assert seen == [delay]
    assert without_heartbeats(control.rest()) == [{"op": "ready", "keys": 3}]


async def test_start_is_cancelled_by_a_stop(control: ControlEnd) -> None:
    async def serve(_: Channel) -> int:
        await asyncio.Event().wait()
        return 17

    control.send("drain", delay=False)
    assert await run(control, serve) == 0


async def test_cancellation_that_is_no_stop_is_passed_on(control: ControlEnd) -> None:
    async def serve(_: Channel) -> int:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await run(control, serve)


async def test_failed_start_is_reported(control: ControlEnd) -> None:
    async def serve(_: Channel) -> int:
        raise StartError("no file")

    assert await run(control, serve) == 3
    (message,) = without_heartbeats(control.rest())
    assert (message["op"], message["error"]["message"]) == ("failed", "no file")


async def test_unhandled_exception_is_logged_without_its_message(
    control: ControlEnd, caplog: pytest.LogCaptureFixture
) -> None:
    card_number = "4000123412341234"

    async def serve(_: Channel) -> int:
        raise ValueError(card_number)

    assert await run(control, serve) == 70
    assert without_heartbeats(control.rest()) == []
    assert "unhandled exception" in caplog.text
    assert "ValueError" in caplog.text
    assert card_number not in caplog.text


async def test_process_stops_without_a_delay_when_its_supervisor_is_gone(
    control: ControlEnd, caplog: pytest.LogCaptureFixture
) -> None:
    async def serve(channel: Channel) -> int:
        channel.serving(0, execute_nothing)
        control.close()
        await channel.stop.wait()
        assert not channel.delay
        channel.send({"op": "report", "report": None})  # does nothing
        return 17

    assert await run(control, serve) == 17
    assert caplog.messages == ["the supervisor is gone: stopping"]


async def test_end_of_the_process_is_no_end_of_the_supervisor(
    control: ControlEnd, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    control.send("drain", delay=False)
    await run(control, until_stopped)
    assert caplog.messages == []


async def test_everything_is_sent_before_the_end(control: ControlEnd) -> None:
    """Also more than a socket takes at once."""
    text = "x" * 1_000_000

    async def serve(channel: Channel) -> int:
        channel.send({"op": "report", "report": text})
        return 0

    ended = asyncio.create_task(run(control, serve))
    sent = await asyncio.to_thread(control.rest)
    assert sent[0] == {"op": "report", "report": text}
    assert await ended == 0


async def test_commands_are_executed_and_replied_to(control: ControlEnd) -> None:
    async def execute(command: str, args: Message) -> object:
        if command == "fail":
            raise KeyError(command)
        return command, args

    async def serve(channel: Channel) -> int:
        channel.serving(0, execute)
        return await until_stopped(channel)

    control.send("do", id=1, command="purge", args={"all": True})
    control.send("reply", id=2)  # to nothing that was asked
    control.send("do", id=3, command="fail", args={})
    task = asyncio.create_task(run(control, serve))
    replies = [await asyncio.to_thread(control.wait_for, "reply") for _ in range(2)]
    control.send("drain", delay=False)
    await task
    assert replies == [
        {"op": "reply", "id": 1, "result": ["purge", {"all": True}]},
        {"op": "reply", "id": 3, "error": "KeyError"},
    ]


async def test_command_waits_until_the_process_serves(control: ControlEnd) -> None:
    async def execute(command: str, args: Message) -> object:
        return command

    async def serve(channel: Channel) -> int:
        await asyncio.sleep(0.01)
        channel.serving(0, execute)
        return await until_stopped(channel)

    control.send("do", id=1, command="purge", args={})
    task = asyncio.create_task(run(control, serve))
    received = [await asyncio.to_thread(control.receive) for _ in range(3)]
    assert without_heartbeats([each for each in received if each]) == [
        {"op": "ready", "keys": 0},
        {"op": "reply", "id": 1, "result": "purge"},
    ]
    control.send("drain", delay=False)
    await task


async def test_nothing_is_kept_of_what_was_asked(control: ControlEnd) -> None:
    """The admin process asks for each scrape, and gives up what takes too long."""

    async def serve(channel: Channel) -> int:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(channel.ask("purge", {}), 0.001)
        control.send("reply", id=2, overview={})
        assert (await channel.ask("report", {}))["overview"] == {}
        return len(channel._replies)

    assert await run(control, serve) == 0


async def test_reply_that_comes_as_it_is_given_up_is_ignored(control: ControlEnd) -> None:
    async def serve(channel: Channel) -> int:
        asking = asyncio.create_task(channel.ask("purge", {}))
        await asyncio.sleep(0)
        asking.cancel()
        channel.data_received(encode({"op": "reply", "id": 1}))
        await asyncio.wait([asking])
        control.send("reply", id=2, overview={})
        await channel.ask("report", {})
        return 17

    assert await run(control, serve) == 17


async def test_heartbeat_is_sent_every_second_and_at_the_end(control: ControlEnd) -> None:
    clock = LoopClock()
    counts: list[int] = []

    async def serve(channel: Channel) -> int:
        channel.serving(0, execute_nothing, lambda: {"count": len(counts)})
        await asyncio.sleep(0)
        for _ in range(3):
            await clock.advance(0.9)
            counts.append(1)
            await clock.advance(0.11)
        counts.append(1)
        return 0

    await supervised(control.theirs, serve)
    reports = [each for each in control.rest() if each["op"] == "report"]
    assert [each["report"]["count"] for each in reports] == [0, 1, 2, 3, 4]


async def test_last_report_is_sent_after_an_error(control: ControlEnd) -> None:
    async def serve(channel: Channel) -> int:
        raise StartError("no file")

    await run(control, serve)
    assert [each["op"] for each in control.rest()] == ["failed", "report"]
