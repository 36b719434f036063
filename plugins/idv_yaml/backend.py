"""Users from a fixture file, reloaded when it is edited; `fixture` parses it.

An edit is noticed by the file system events of the directories that contain the file, within a
tenth of a second, and by comparing the file's signature twice a second, for what causes no
events (network file systems, a replaced directory, a link changed further up).
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import os
from collections.abc import Mapping
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import ClassVar

from watchfiles import awatch

from idv_yaml.fixture import Fixture, parse
from tornado_idv import (
    Backend,
    BackendOptions,
    ByNickname,
    ConfigError,
    ConfigPath,
    DaemonThread,
    Fault,
    FileSignature,
    Query,
    StartError,
    Unavailable,
    User,
    format_traceback,
)


class YamlOptions(BackendOptions):
    """The options of the kind ``yaml``, beside those of every backend."""

    path: ConfigPath
    """The fixture; a relative path is relative to the folder of the configuration file."""
    watch: bool = True
    """Whether the file is reloaded when it changes."""


_CHECK_INTERVAL = 0.5
_QUIET_PERIOD_MS = 100
_MAX_DELAY_MS = 400
_MAX_PROBLEMS = 10

_log = logging.getLogger(__name__)
# At INFO watchfiles logs every event: with a log file beside the fixture that is a loop.
logging.getLogger("watchfiles").setLevel(logging.WARNING)


class YamlBackend(Backend[YamlOptions]):
    """The users of one fixture file, in memory."""

    options_type: ClassVar[type[BackendOptions]] = YamlOptions

    _fixture: Fixture
    _digest: str

    def __init__(self, options: YamlOptions) -> None:
        super().__init__(options)
        self._reported = ""
        self._problem: str | None = None
        self._watch_error = ""
        self._signature: FileSignature | None = None
        self._reload_due = True
        self._watcher: asyncio.Task[None] | None = None

    @property
    def user_count(self) -> int:
        """The number of users of the last valid fixture."""
        return len(self._fixture.by_nickname)

    @property
    def problem(self) -> str | None:
        """Why the last edit was rejected."""
        return self._problem

    @property
    def faults(self) -> Mapping[Query | None, Fault]:
        return self._fixture.faults

    async def open(self) -> None:
        """Read the file, and start to watch it if configured."""
        path = self.options.path
        self._digest, content = await DaemonThread("fixture")(_read, path)
        self._fixture = await self._parse(content, counted=False)
        if self.options.watch:
            self._watcher = asyncio.create_task(self._watch(), name=f"watch {self.name}")

    async def find(self, query: Query) -> User | None:
        """Return the user from the last valid fixture.

        Raises `Unavailable` for an entry with a fault and without a user: nothing is known of it.
        """
        fixture = self._fixture
        if isinstance(query, ByNickname):
            user = fixture.by_nickname.get(query.nickname)
        else:
            user = fixture.by_card.get(query.card_number)
        if user is None and query in fixture.faults:
            raise Unavailable("the entry has no user", counts_against_breaker=False)
        return user

    async def close(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
            self._watcher = None  # its traceback refers to this backend

    async def reload(self) -> None:
        """Read the file; keep the old users if it cannot be used.

        Each such content is logged once in a row, however often it is read.
        """
        path, state = self.options.path, ""
        try:
            state, content = await DaemonThread("fixture")(_read, path)
            if state in {self._digest, self._reported}:
                if state == self._digest:
                    self._reported, self._problem = "", None
                return
            fixture = await self._parse(content, counted=self._fixture.counted)
        except StartError as error:
            self._reject(state or str(error), error)
        else:
            self._digest, self._fixture = state, fixture
            self._reported, self._problem = "", None
            _log.info("backend %s: fixture reloaded, %d users", self.name, len(fixture.by_nickname))
            self.notify_changed()

    async def _parse(self, content: bytes, *, counted: bool) -> Fixture:
        options = self.options
        parsing = partial(
            parse,
            content,
            str(options.path),
            counted=counted,
            folds_nicknames=options.folds_nicknames,
            allows_faults=options.allows_faults,
        )
        # A fixture of 300,000 users takes 14 s to parse.
        fixture: Fixture = await DaemonThread("fixture")(parsing)
        return fixture

    def _reject(self, state: str, error: StartError) -> None:
        if state != self._reported:
            self._reported, self._problem = state, _summary(error)
            _log.warning(
                "backend %s: fixture rejected, keeping the old users: %s", self.name, self._problem
            )

    async def _watch(self) -> None:
        while True:
            try:
                await self._follow()
            except Exception as error:  # noqa: BLE001 - edits must still be noticed
                if repr(error) != self._watch_error:
                    self._watch_error = repr(error)
                    text = "backend %s: cannot watch the fixture, checking it every %s s: %s"
                    why = error if isinstance(error, OSError) else format_traceback(error)
                    _log.warning(text, self.name, _CHECK_INTERVAL, why)
                await asyncio.sleep(_CHECK_INTERVAL)

    async def _follow(self) -> None:
        """Check once, then reload on events until there are other directories to watch."""
        await self._check()
        # An edit before the watch begins makes no event, and within the resolution of the
        # file system's clock it may leave the signature as it was.
        self._reload_due = True
        folders = await asyncio.to_thread(_folders, self.options.path)
        batches = awatch(
            *folders.values(),
            watch_filter=None,
            debounce=_MAX_DELAY_MS,
            step=_QUIET_PERIOD_MS,
            rust_timeout=int(_CHECK_INTERVAL * 1000),
            yield_on_timeout=True,
            recursive=False,
        )
        async with aclosing(batches):
            async for events in batches:
                self._watch_error = ""
                await (self.reload() if events else self._check())
                if await asyncio.to_thread(_folders, self.options.path) != folders:
                    return

    async def _check(self) -> None:
        signature = await asyncio.to_thread(FileSignature.find, self.options.path)
        if self._reload_due or signature != self._signature:
            self._signature, self._reload_due = signature, False
            await self.reload()


def _read(path: Path) -> tuple[str, bytes]:
    """Return the file's digest and content; raises `StartError` if it cannot be read."""
    try:
        if path.exists() and not path.is_file():
            raise StartError(f"{path}: not a file")
        content = path.read_bytes()
    except OSError as error:
        if error.errno == errno.ELOOP:
            why = "a loop of symbolic links; make the link lead to a file"
            raise StartError(f"{path}: {why}") from error
        raise StartError(f"{path}: cannot be read: {error.strerror}") from error
    return hashlib.sha256(content).hexdigest(), content


def _folders(path: Path) -> dict[tuple[int, int], Path]:
    """Return the directory in the path and the one that its links lead to, each once."""
    target = Path(os.path.realpath(path))  # Path.resolve raises RuntimeError for a loop of links
    return {FileSignature.of(each)[:2]: each for each in (path.parent, target.parent)}


def _summary(error: StartError) -> str:
    if not isinstance(error, ConfigError):
        return str(error)
    more = len(error.problems) - _MAX_PROBLEMS
    listed = "; ".join(str(problem) for problem in error.problems[:_MAX_PROBLEMS])
    return f"{listed}; and {more} more" if more > 0 else listed
