"""Connections between processes by addresses that are no files."""

from __future__ import annotations

import errno
import os
import socket
import struct

import pytest

from tornado_idv.errors import StartError
from tornado_idv.workers.channel import MessageStream, connected, control_socket


async def echo(connection: MessageStream) -> None:
    while (message := await connection.receive()) is not None:
        connection.send(**message)


async def test_message_of_a_mebibyte_arrives_whole() -> None:
    async with control_socket(echo) as address, connected(address) as connection:
        connection.send(text="ä" * 2**20)
        assert await connection.receive() == {"text": "ä" * 2**20}


async def test_address_is_no_file_and_is_free_at_the_end() -> None:
    async with control_socket(echo) as address:
        assert address.startswith("\0")
    with pytest.raises(ConnectionError):
        async with connected(address):
            pass


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
