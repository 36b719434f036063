"""Lookups in a fixture file, which is reloaded after each edit.

Four times a second, the backend compares the file's signature (its inode, size and times) with the
last one. This works on every file system and for every way to replace a file. After a change, the
file is read when two checks in a row give the same signature, because the write has ended by this
time. Each later edit has a different modification time, and is noticed.
"""

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from typing import ClassVar, Self

from pydantic import PrivateAttr, ValidationInfo, model_validator

from idv_yaml.fixture import Fixture, parse
from tornado_idv import (
    Backend,
    BackendOptions,
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
    """The options of a backend of the kind ``yaml``."""

    path: ConfigPath
    """The fixture file. A relative path starts at the folder of the configuration file."""
    watch: bool = True
    """Reload the file when it changes."""
    _is_demo: bool = PrivateAttr(default=False)

    @model_validator(mode="after")
    def _read_demo(self, info: ValidationInfo) -> Self:
        self._is_demo = (info.context or {}).get("demo", False)
        return self

    @property
    def allows_faults(self) -> bool:
        """True if the fixture may contain faults. Only a test double permits them."""
        return self._is_demo


_CHECK_INTERVAL = 0.25
_MAX_CHANGES = 3
"""After this many changed signatures in a row, the file is read although it still changes."""
_MAX_PROBLEMS = 10

_log = logging.getLogger(__name__)


class YamlBackend(Backend[YamlOptions]):
    """A backend that keeps the users of one fixture file in memory."""

    options_type: ClassVar[type[BackendOptions]] = YamlOptions

    problem: str | None = None
    """The reason why the last edit of the fixture was rejected, or ``None``."""
    revision = ""
    """The digest of the last valid fixture."""

    _fixture = Fixture({}, {}, counted=False)
    _watcher: asyncio.Task[None] | None = None

    @property
    def user_count(self) -> int:
        """The number of users of the last valid fixture."""
        return len(self._fixture.users) // 2  # two queries find each user

    @property
    def faults(self) -> Mapping[Query | None, Fault]:
        """The simulated failures by query. The failure for all queries has the key ``None``."""
        return self._fixture.faults

    async def open(self) -> None:
        """Read the file. With the option ``watch``, start to watch it."""
        self.revision, self._fixture = await DaemonThread("fixture")(self._load)
        if self.options.watch:
            self._watcher = asyncio.create_task(self._watch(), name=f"watch {self.name}")

    async def find(self, query: Query) -> User | None:
        """Return the user for a query from the last valid fixture.

        Raises `Unavailable` if the entry for the query has a fault and no user.
        """
        user = self._fixture.users.get(query)
        if user is None and query in self._fixture.faults:
            raise Unavailable("the entry has no user", counts_against_breaker=False)
        return user

    async def close(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
            self._watcher = None  # breaks a reference cycle: its traceback refers to this backend

    async def reload(self) -> None:
        """Read the file again, and replace the users. If the file is invalid, keep the old users.

        If the file is read several times with the same problem, the problem is logged once.
        """
        try:
            digest, fixture = await DaemonThread("fixture")(self._load)
        except StartError as error:
            problem = str(error)
            if isinstance(error, ConfigError):
                more = len(error.problems) - _MAX_PROBLEMS
                problem = "; ".join(map(str, error.problems[:_MAX_PROBLEMS]))
                problem += f"; and {more} more" if more > 0 else ""
            if problem != self.problem:
                self.problem = problem
                text = "backend %s: fixture rejected, keeping the old users: %s"
                _log.warning(text, self.name, problem)
            return
        self.problem = None
        if digest != self.revision:
            self.revision, self._fixture = digest, fixture
            _log.info("backend %s: fixture reloaded, %d users", self.name, self.user_count)
            self.notify_changed()

    def _load(self) -> tuple[str, Fixture]:
        """Return the digest of the file and the parsed fixture. Raises `StartError`.

        For an unchanged file, return the last fixture, because parsing 300,000 users takes 14 s.
        """
        path = self.options.path
        try:
            if path.exists() and not path.is_file():
                raise StartError(f"{path}: not a file")
            before, content = FileSignature.find(path), path.read_bytes()
        except OSError as error:
            raise StartError(f"{path}: cannot be read: {error.strerror}") from error
        if FileSignature.find(path) != before:  # the content may be cut
            raise StartError(f"{path}: was written while it was read")
        digest = hashlib.sha256(content).hexdigest()
        if digest == self.revision:
            return digest, self._fixture
        return digest, parse(
            content,
            str(path),
            counted=self._fixture.counted,
            folds_nicknames=self.options.folds_nicknames,
            allows_faults=self.options.allows_faults,
        )

    async def _watch(self) -> None:
        before: FileSignature | None = None
        changes = 1
        while True:
            try:
                last = before
                before = await DaemonThread("fixture")(FileSignature.find, self.options.path)
                changes += before != last
                if changes and (before == last or changes > _MAX_CHANGES):
                    changes = int(before != last)
                    await self.reload()
            except Exception as error:  # noqa: BLE001 - this and later edits must still be noticed
                changes = 1  # the next two equal signatures reload the file again
                text = "backend %s: fixture not reloaded:\n%s"
                _log.error(text, self.name, format_traceback(error))
            await asyncio.sleep(_CHECK_INTERVAL)
