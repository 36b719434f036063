"""Answers from a fixture, and follows its edits; what a fixture means is `fixture`'s business.

Two things tell of an edit: the events of the folders that hold the file, within a
tenth of a second, and a look at the file twice a second, for what makes no events
(network file systems, a folder replaced, a link changed further up).
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import os
from contextlib import aclosing
from pathlib import Path
from typing import ClassVar

from watchfiles import awatch

from idv_yaml.daemon_thread import in_daemon_thread
from idv_yaml.fixture import Fixture, parse
from idv_yaml.options import YamlOptions
from tornado_idv import (
    Backend,
    BackendOptions,
    ByNickname,
    ConfigError,
    FileSignature,
    Query,
    StartError,
    User,
    format_traceback,
)

_LOOK_EVERY = 0.5
_QUIET_MS = 100
_LONGEST_MS = 400
_TOLD_PROBLEMS = 10

_log = logging.getLogger(__name__)
# At INFO watchfiles logs every event: with a log file beside the fixture that is a loop.
logging.getLogger("watchfiles").setLevel(logging.WARNING)


class YamlBackend(Backend[YamlOptions]):
    """The users of one fixture file, held in memory."""

    options_type: ClassVar[type[BackendOptions]] = YamlOptions

    _fixture: Fixture
    _digest: str

    def __init__(self, options: YamlOptions) -> None:
        super().__init__(options)
        self._told = ""
        self._unwatched = ""
        self._signature: FileSignature | None = None
        self._reload_due = True
        self._watcher: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Reads the file, and begins to watch it if that is wanted."""
        path = self.options.path
        self._digest, content = await in_daemon_thread(_read, path)
        self._fixture = await self._parse(content, counted=False)
        if self.options.watch:
            self._watcher = asyncio.create_task(self._watch(), name=f"watch {self.name}")

    async def find(self, query: Query) -> User | None:
        """Looks into the users as they were last read well."""
        if isinstance(query, ByNickname):
            return self._fixture.by_nickname.get(query.nickname)
        return self._fixture.by_card.get(query.card_number)

    async def close(self) -> None:
        """Stops watching."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)

    async def reload(self) -> None:
        """Reads the file anew; from one that cannot be used the old users are kept.

        Each such state of the file is logged once, however often it is met.
        """
        path, state = self.options.path, ""
        try:
            state, content = await in_daemon_thread(_read, path)
            if state in {self._digest, self._told}:
                self._told = "" if state == self._digest else self._told
                return
            fixture = await self._parse(content, counted=self._fixture.counted)
        except StartError as error:
            self._keep(state or str(error), error)
        else:
            self._serve(state, fixture)

    async def _parse(self, content: bytes, *, counted: bool) -> Fixture:
        options = self.options
        folds = options.folds_nicknames
        return await in_daemon_thread(
            parse, content, str(options.path), counted=counted, folds_nicknames=folds
        )

    def _keep(self, state: str, error: StartError) -> None:
        if state != self._told:
            self._told = state
            _log.warning("backend %s keeps its old users: %s", self.name, _shortened(error))

    def _serve(self, digest: str, fixture: Fixture) -> None:
        self._digest, self._fixture, self._told = digest, fixture, ""
        _log.info("backend %s was read anew: %d users", self.name, len(fixture.by_nickname))
        self.notify_changed()

    async def _watch(self) -> None:
        while True:
            try:
                await self._follow()
            except Exception as error:  # noqa: BLE001 - whatever it is, edits must still be seen
                self._tell_unwatched(error)
                await asyncio.sleep(_LOOK_EVERY)

    async def _follow(self) -> None:
        """Looks once, then reloads on events until the folders to watch are others."""
        await self._look()
        # An edit before the watch begins makes no event, and within the resolution of the
        # file system's clock it may leave the signature as it was.
        self._reload_due = True
        folders = await asyncio.to_thread(_folders, self.options.path)
        batches = awatch(
            *folders.values(),
            watch_filter=None,
            debounce=_LONGEST_MS,
            step=_QUIET_MS,
            rust_timeout=int(_LOOK_EVERY * 1000),
            yield_on_timeout=True,
            recursive=False,
        )
        async with aclosing(batches):
            async for events in batches:
                self._unwatched = ""
                await (self.reload() if events else self._look())
                if await asyncio.to_thread(_folders, self.options.path) != folders:
                    return

    async def _look(self) -> None:
        signature = await asyncio.to_thread(_signature, self.options.path)
        if self._reload_due or signature != self._signature:
            self._signature, self._reload_due = signature, False
            await self.reload()

    def _tell_unwatched(self, error: Exception) -> None:
        if repr(error) != self._unwatched:
            self._unwatched = repr(error)
            text = "backend %s cannot watch its file, and looks at it each %s s: %s"
            why = error if isinstance(error, OSError) else format_traceback(error)
            _log.warning(text, self.name, _LOOK_EVERY, why)


def _read(path: Path) -> tuple[str, bytes]:
    """The file's digest and content; raises `StartError` if it cannot be read."""
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


def _signature(path: Path) -> FileSignature | None:
    """Return the file's signature, ``None`` if there is no file."""
    try:
        return FileSignature.of(path)
    except OSError:
        return None


def _folders(path: Path) -> dict[tuple[int, int], Path]:
    """The folder that the path names and the one that its links lead to, each once."""
    target = Path(os.path.realpath(path))  # Path.resolve raises RuntimeError for a loop of links
    return {_identity(each.stat()): each for each in (path.parent, target.parent)}


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _shortened(error: StartError) -> str:
    if not isinstance(error, ConfigError):
        return str(error)
    more = len(error.problems) - _TOLD_PROBLEMS
    told = "; ".join(str(problem) for problem in error.problems[:_TOLD_PROBLEMS])
    return f"{told}; and {more} more" if more > 0 else told
