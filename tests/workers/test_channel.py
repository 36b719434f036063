"""Connections of a process: to its supervisor, which can end it, and to other processes."""

import asyncio
import errno
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator

import pytest

from support.processes.control_channel import ControlEnd
from tornado_idv.errors import ConfigError, Problem, StartError
from tornado_idv.workers.channel import (
    Channel,
    MessageStream,
    connected,
    control_socket,
    supervised,
)

Serve = Callable[[Channel], Awaitable[bool]]


@pytest.fixture
def control() -> Iterator[ControlEnd]:
    with ControlEnd() as control:
        yield control


async def run(control: ControlEnd, serve: Serve) -> int:
    task = asyncio.create_task(supervised(control.theirs, serve, 0))
    await asyncio.wait([task], timeout=10)
    assert task.done()  # `wait_for` would cancel it, which it could take for a stop
    return task.result()


@pytest.mark.parametrize("delay", [False, True])
async def test_process_stops_as_the_supervisor_says(
    control: ControlEnd, caplog: pytest.LogCaptureFixture, *, delay: bool
) -> None:
    """Its end is not taken for that of the supervisor."""
    caplog.set_level(logging.INFO)
    seen: list[bool] = []

    async def serve(channel: Channel) -> bool:
        channel.serving(3)
        await channel.stop.wait()
        seen.append(channel.delay)
        return not delay

    control.send("drain", delay=delay)
    assert await run(control, serve) == int(delay)
    assert seen == [delay]
    assert control.rest()[-1]["state"]["keys"] == 3
    assert caplog.messages == []


async def test_cancellation_that_is_no_stop_is_passed_on(control: ControlEnd) -> None:
    async def serve(_: Channel) -> bool:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await run(control, serve)


async def test_problems_of_a_failed_start_are_reported(control: ControlEnd) -> None:
    error = ConfigError(
        Problem("users.yaml", 3, 1, "users", "wrong"), Problem("x", 1, 2, "", "bad")
    )

    async def serve(_: Channel) -> bool:
        raise error

    await run(control, serve)
    received = control.wait_for(lambda state: state.error).start_error
    assert (type(received), str(received), vars(received)) == (ConfigError, str(error), vars(error))


async def test_unhandled_exception_is_logged_without_its_message(
    control: ControlEnd, caplog: pytest.LogCaptureFixture
) -> None:
    card_number = "4000123412341234"

    async def serve(_: Channel) -> bool:
        raise ValueError(card_number)

    assert await run(control, serve) == 70
    assert {each["state"]["error"] for each in control.rest()} == {None}
    assert "unhandled exception" in caplog.text
    assert "ValueError" in caplog.text
    assert card_number not in caplog.text


async def test_everything_is_sent_before_the_end(control: ControlEnd) -> None:
    text = "x" * 1_000_000

    async def serve(channel: Channel) -> bool:
        channel.send(op="report", report=text)
        return True

    ended = asyncio.create_task(run(control, serve))
    sent = await asyncio.to_thread(control.rest)
    assert {"op": "report", "report": text} in sent
    assert await ended == 0


async def test_replies_are_in_the_order_of_the_messages(control: ControlEnd) -> None:
    async def serve(channel: Channel) -> bool:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(channel.ask("overview"), 0.001)
        asking = asyncio.create_task(channel.ask("overview"))
        for number in (1, 2):
            control.send("reply", number=number)
        assert (await asking)["number"] == 2
        return not channel._replies  # noqa: SLF001 - what another service has written

    assert await run(control, serve) == 0


# Connections between processes


async def echo(connection: MessageStream) -> None:
    while (message := await connection.receive()) is not None:
        connection.send(**message)


async def test_address_is_no_file_takes_long_messages_and_is_free_at_the_end() -> None:
    async with control_socket(echo) as address:
        assert address.startswith("\0")
        async with connected(address) as connection:
            connection.send(text="ä" * 2**20)
            assert await connection.receive() == {"text": "ä" * 2**20}
    with pytest.raises(ConnectionError):
        async with connected(address):
            pass


async def test_busy_process_blocks_nothing_and_its_end_amid_a_message_is_its_end() -> None:
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind("")
        busy.listen(0)
        address = str(busy.getsockname(), "latin-1")
        async with connected(address) as connection:
            with pytest.raises(BlockingIOError):
                await connected(address).__aenter__()
            with busy.accept()[0] as accepted:
                accepted.send(b'{"op"')
            assert await connection.receive() is None
            connection.send(op="purge")  # to none: a broken pipe
            await asyncio.sleep(0)
            assert await connection.receive() is None


async def test_worker_cannot_start_where_there_are_no_unix_sockets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")

    monkeypatch.setattr(socket, "socket", fail)
    with pytest.raises(StartError, match=r"not supported by protocol; allow AF_UNIX$"):
        async with control_socket(echo):
            pass


@pytest.mark.parametrize(
    ("pid", "user"),
    [(0, os.geteuid()), (os.getpid(), os.geteuid() + 1)],
    ids=["another PID namespace", "another user"],
)
async def test_process_of_others_is_not_responded_to(
    monkeypatch: pytest.MonkeyPatch, pid: int, user: int
) -> None:
    async with control_socket(echo) as address, connected(address) as connection:
        original = socket.socket.getsockopt

        def getsockopt(sock: socket.socket, level: int, option: int, *size: int) -> object:
            # Sockets of others in this process ask for other options.
            is_asked = option == socket.SO_PEERCRED
            return struct.pack("3i", pid, user, 0) if is_asked else original(sock, level, option)

        monkeypatch.setattr(socket.socket, "getsockopt", getsockopt)
        connection.send(text="canary")
        assert await connection.receive() is None


async def test_process_of_another_user_is_sent_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with control_socket(echo) as address:
        monkeypatch.setattr(os, "geteuid", lambda: 1 + os.getuid())
        with pytest.raises(ConnectionError):
            async with connected(address):
                pass
