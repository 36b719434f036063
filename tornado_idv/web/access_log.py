"""One log line for each response.

These lines are by far the most, so they do not pass through `logging`: they are formatted
here, collected, and written in batches.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable

from tornado_idv.errors import CouldNotTell

_FLUSH_INTERVAL = 0.01
"""Seconds until collected lines are written. No request is served meanwhile: at 15,000 responses
a second, that takes 0.14 ms; with 0.2 s it would be 1.3 ms, and longer for each line."""
_MAX_LINES = 20_000
_BELOW_RESOLUTION = 5e-6
"""Seconds below which a response took "0.00" ms, as most do; formatting that is slow."""


class AccessLog:
    """Writes a line for each response; ``write`` takes text, some lines at a time.

    A line holds method, route, status, error code, milliseconds, client address, key id and
    request id, none of which contains anything of the input but the request id, which is of a few
    harmless characters. ``for_people`` selects text, otherwise lines are JSON.
    """

    def __init__(self, write: Callable[[str], object], *, for_people: bool) -> None:
        self._write = write
        self._for_people = for_people
        self._lines: list[str] = []

    def log(
        self,
        *,
        method: str,
        route: str,
        status: int,
        code: str | None,
        seconds: float,
        client_address: str,
        key_id: str | None,
        request_id: str,
        cause: CouldNotTell | None = None,
    ) -> None:
        """Log a response; ``code`` is of its error record, ``cause`` why a lookup failed."""
        lines = self._lines
        if not lines:
            asyncio.get_running_loop().call_later(_FLUSH_INTERVAL, self.flush)
        ms = "0.00" if seconds < _BELOW_RESOLUTION else f"{seconds * 1000:.2f}"
        if self._for_people:
            more = "" if code is None else f" code={code}"
            if cause is not None:
                more += f" backend={cause.backend} reason={cause.reason!r}"
            lines.append(
                f"{_clock.now()} [info     ] answered method={method} route={route} "
                f"status={status} ms={ms} remote={client_address} key={key_id} "
                f"request_id={request_id}{more}\n"
            )
        else:
            more = "" if code is None else f', "code": "{code}"'
            if cause is not None:
                more += f', "backend": {json.dumps(cause.backend)}'
                more += f', "reason": {json.dumps(cause.reason)}'
            key = "null" if key_id is None else f'"{key_id}"'
            lines.append(
                f'{{"event": "answered", "level": "info", "logger": "tornado_idv.access", '
                f'"method": "{method}", "route": "{route}", "status": {status}, "ms": {ms}, '
                f'"remote": "{client_address}", "key": {key}, "request_id": "{request_id}", '
                f'"timestamp": "{_clock.now()}"{more}}}\n'
            )
        if len(lines) >= _MAX_LINES:
            self.flush()

    def flush(self) -> None:
        """Writes what was gathered."""
        if self._lines:
            lines, self._lines = self._lines, []
            self._write("".join(lines))


class _Clock:
    """The time as lines tell it, written out once a millisecond."""

    def __init__(self) -> None:
        self._since = self._until = 0.0
        self._text = ""

    def now(self) -> str:
        now = time.time()
        if not self._since <= now < self._until:
            milliseconds = int(now * 1000)
            self._since, self._until = milliseconds / 1000, (milliseconds + 1) / 1000
            second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
            self._text = f"{second}.{milliseconds % 1000:03}Z"
        return self._text


_clock = _Clock()
