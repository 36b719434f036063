"""The part of one process in a reload of all: it prepares, and the supervisor decides."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from tornado_idv.config.load import ConfigFile
from tornado_idv.service.prepared import Prepared
from tornado_idv.service.reload import PREPARE_TIMEOUT, failure
from tornado_idv.workers.control import Message


class PreparedReload:
    """Does the commands ``prepare``, ``commit`` and ``abort`` of the supervisor.

    ``prepare`` opens what a configuration needs; ``file`` is the one that was read first.
    """

    def __init__(
        self, file: ConfigFile, prepare: Callable[[ConfigFile], Awaitable[Prepared]]
    ) -> None:
        self._file = file
        self._prepare = prepare
        self._prepared: Prepared | None = None
        self._last = 0
        """The number of the last command: what an earlier one prepares too late is not wanted."""

    async def execute(self, command: str, args: Message) -> Message | None:
        """Do a command; return the problems of one that cannot be prepared, and why."""
        self._last = number = self._last + 1
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            if command == "commit":
                prepared.commit()
            else:
                await prepared.abort()
        if command != "prepare":
            return None
        # The content is the supervisor's, so that all processes have the same configuration.
        file = replace(self._file, content=args["content"].encode())
        try:
            async with asyncio.timeout(PREPARE_TIMEOUT):
                prepared = await self._prepare(file)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            result = failure(error, time.time())
            return {"code": result.code, "problems": result.problems}
        if number != self._last:
            await prepared.abort()
        else:
            self._prepared = prepared
        return None
