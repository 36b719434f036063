"""One log line for each answer, of what may be known to whoever reads logs.

These lines are the most of all, so they do not pass through `logging`: they are put
together here, gathered, and written soon.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass

from tornado_idv.web.refusals import Refusal

_GATHERED_FOR = 0.01
"""Seconds until what was gathered is written. Nobody is answered meanwhile: at 15,000 answers a
second, 0.14 ms; with 0.2 s it would be 1.3 ms, and twice as long for each line."""
_MOST_GATHERED = 20_000
_NO_TIME = 5e-6
"""Seconds up to which an answer took 0.00 ms, as most do; to write that out is slow."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request was not answered with 200: the error ``code`` of the response.

    ``reason`` is a phrase for the operator, and ``backend`` the one that failed. Both may come
    from plugins, so they are escaped.
    """

    code: str
    backend: str | None = None
    reason: str | None = None

    def as_json(self) -> str:
        """Members of a JSON object, with a comma after each; what is not known is left out."""
        members = f'"code": "{self.code}", '
        if self.backend is not None:
            members += f'"backend": {json.dumps(self.backend)}, '
        if self.reason is not None:
            members += f'"reason": {json.dumps(self.reason)}, '
        return members

    def as_text(self) -> str:
        """The same for people, with a blank before each."""
        fields = f" code={self.code}"
        if self.backend is not None:
            fields += f" backend={json.dumps(self.backend)}"
        if self.reason is not None:
            fields += f" reason={json.dumps(self.reason)}"
        return fields


NOT_FOUND = Failure(Refusal.NOT_FOUND.code)


class AccessLog:
    """Writes a line for each answer; ``write`` takes text, some lines at a time.

    A line holds method, route, status, milliseconds, the caller's address, key id and
    request id, all of which are of a few harmless characters; nothing of the input. The line of
    an error also holds its `Failure`. ``for_people`` makes it a line to be read; else it is JSON.
    """

    def __init__(self, write: Callable[[str], object], *, for_people: bool) -> None:
        self._write = write
        self._for_people = for_people
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
        failure: Failure | None = None,
    ) -> None:
        """Notes an answer; all but 200 have a ``failure``."""
        lines = self._lines
        if not lines:
            asyncio.get_running_loop().call_later(_GATHERED_FOR, self.flush)
        ms = "0.00" if seconds < _NO_TIME else f"{seconds * 1000:.2f}"
        if self._for_people:
            lines.append(
                f"{_clock.now()} [info     ] answered method={method} route={route} "
                f"status={status} ms={ms} remote={remote} key={key_id} request_id={request_id}"
                f"{'' if failure is None else failure.as_text()}\n"
            )
        else:
            key = "null" if key_id is None else f'"{key_id}"'
            lines.append(
                f'{{"event": "answered", "level": "info", "logger": "tornado_idv.access", '
                f'"method": "{method}", "route": "{route}", "status": {status}, "ms": {ms}, '
                f'"remote": "{remote}", "key": {key}, "request_id": "{request_id}", '
                f'{"" if failure is None else failure.as_json()}"timestamp": "{_clock.now()}"}}\n'
            )
        if len(lines) >= _MOST_GATHERED:
            self.flush()

    def refused(self, *, status: int, code: str, remote: str, request_id: str) -> None:
        """Notes what was refused before anything of it was understood."""
        self.answered(
            method="-",
            route="-",
            status=status,
            seconds=0.0,
            remote=remote,
            key_id=None,
            request_id=request_id,
            failure=Failure(code),
        )

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
