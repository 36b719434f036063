"""One log line for each answer, of what may be known to whoever reads logs.

These lines are the most of all, so they do not pass through `logging`: they are put
together here, gathered, and written soon.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import lru_cache

_GATHERED_FOR = 0.01
"""Seconds until what was gathered is written. Nobody is answered meanwhile: at 15,000 answers a
second, 0.14 ms; with 0.2 s it would be 1.3 ms, and twice as long for each line."""
_MOST_GATHERED = 20_000
_NO_TIME = 5e-6
"""Seconds up to which an answer took 0.00 ms, as most do; to write that out is slow."""


class AccessLog:
    """Writes a line for each answer; ``write`` takes text, some lines at a time.

    A line holds method, route, status, milliseconds, the caller's address, key id and
    request id, all of which are of a few harmless characters; nothing of the input.
    ``for_people`` makes it a line to be read; else it is JSON.
    """

    def __init__(self, write: Callable[[str], object], *, for_people: bool) -> None:
        self._write = write
        self._line = _for_people if for_people else _as_json
        self._lines: list[str] = []

    def answered(
        self,
        *,
        method: str,
        route: str,
        status: int,
        seconds: float,
        remote: str,
        key_id: str | None,
        request_id: str,
    ) -> None:
        """Notes an answer."""
        lines = self._lines
        if not lines:
            asyncio.get_running_loop().call_later(_GATHERED_FOR, self.flush)
        lines.append(
            self._line(
                method=method,
                route=route,
                status=status,
                ms="0.00" if seconds < _NO_TIME else f"{seconds * 1000:.2f}",
                remote=remote,
                key_id=key_id,
                request_id=request_id,
            )
        )
        if len(lines) >= _MOST_GATHERED:
            self.flush()

    def refused(self, *, status: int, remote: str, request_id: str) -> None:
        """Notes what was refused before anything of it was understood."""
        self.answered(
            method="-",
            route="-",
            status=status,
            seconds=0.0,
            remote=remote,
            key_id=None,
            request_id=request_id,
        )

    def flush(self) -> None:
        """Writes what was gathered."""
        if self._lines:
            lines, self._lines = self._lines, []
            self._write("".join(lines))


def _as_json(
    *,
    method: str,
    route: str,
    status: int,
    ms: str,
    remote: str,
    key_id: str | None,
    request_id: str,
) -> str:
    key = "null" if key_id is None else f'"{key_id}"'
    return (
        f'{{"event": "answered", "level": "info", "logger": "tornado_idv.access", '
        f'"method": "{method}", "route": "{route}", "status": {status}, "ms": {ms}, '
        f'"remote": "{remote}", "key": {key}, "request_id": "{request_id}", '
        f'"timestamp": "{_timestamp()}"}}\n'
    )


def _for_people(
    *,
    method: str,
    route: str,
    status: int,
    ms: str,
    remote: str,
    key_id: str | None,
    request_id: str,
) -> str:
    return (
        f"{_timestamp()} [info     ] answered method={method} route={route} status={status} "
        f"ms={ms} remote={remote} key={key_id} request_id={request_id}\n"
    )


def _timestamp() -> str:
    return _written(int(time.time() * 1000))


@lru_cache(maxsize=1)
def _written(milliseconds: int) -> str:
    seconds, rest = divmod(milliseconds, 1000)
    return f"{_second(seconds)}.{rest:03}Z"


@lru_cache(maxsize=1)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
