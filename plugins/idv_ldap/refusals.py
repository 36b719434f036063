"""Pauses after refused credentials: a server locks an account after some attempts.

All processes of a service share this memory: the import of the plugin precedes the first fork.
Changed credentials are tried immediately.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from mmap import mmap
from typing import TYPE_CHECKING

from tornado_idv import Broken, Unavailable

if TYPE_CHECKING:
    from idv_ldap.options import LdapOptions

_FIRST_PAUSE, _FACTOR, _MAX_PAUSE = 60.0, 10.0, 3600.0
"""Seconds: three attempts in half an hour, as servers may count them, then one per hour."""
_ACCEPTED_FOR = 10.0
"""Seconds after an accepted bind in which concurrent binds are allowed.

Otherwise the processes would wait for each other at a server that does not respond.
"""
_PLACES = 4096
"""Number of records, by hash; a collision only replaces the pause of other credentials."""
_RECORD = struct.Struct("qdd232s")
"""The hash of the credentials, the end and the length of the pause, and the reason.

The length is 0 for accepted credentials.
"""


class Refused(Broken):
    """The server refuses the credentials; a pause precedes the next attempt."""


class Refusals:
    """The pauses of all credentials; ``timer`` returns seconds, the same in all processes."""

    def __init__(self, timer: Callable[[], float] = time.monotonic) -> None:
        self._timer = timer
        self._records = mmap(-1, _PLACES * _RECORD.size)
        self._in_process: dict[int, threading.Lock] = {}
        # A lock ends with its process. On other systems a service is a single process.
        self._file = os.memfd_create("idv_ldap") if sys.platform == "linux" else None

    def check(self, options: LdapOptions) -> float:
        """Raise `Refused` in the pause after a refusal of these credentials.

        Returns the length of the last pause, 0 without a refusal.
        """
        until, pause, reason = self._read(_hash(options))
        if pause and self._timer() < until:
            raise Refused(reason.rstrip(b"\0").decode(errors="ignore"))
        return pause

    @contextmanager
    def attempt(self, options: LdapOptions) -> Iterator[None]:
        """Allow one use of the credentials at a time, in all processes, and record its `Refused`.

        Shortly after an accepted use, concurrent uses are allowed. Raises `Refused` during a pause,
        and `Unavailable` after a timeout.
        """
        credentials = _hash(options)
        with self._locked(credentials, options.connect_timeout):
            pause = self.check(options)
            try:
                yield
            except Refused as error:
                pause = min(pause * _FACTOR or _FIRST_PAUSE, _MAX_PAUSE)
                self._write(credentials, self._timer() + pause, pause, error.reason.encode())
                raise
            self._write(credentials, self._timer() + _ACCEPTED_FOR, 0.0, b"")

    def _read(self, credentials: int) -> tuple[float, float, bytes]:
        place = credentials % _PLACES
        known, *result = _RECORD.unpack_from(self._records, place * _RECORD.size)
        until, pause, reason = result if known == credentials else (0.0, 0.0, b"")
        return until, pause, reason

    def _write(self, credentials: int, *values: object) -> None:
        place = credentials % _PLACES
        _RECORD.pack_into(self._records, place * _RECORD.size, credentials, *values)

    @contextmanager
    def _locked(self, credentials: int, timeout: float) -> Iterator[None]:
        deadline, place = time.monotonic() + timeout, credentials % _PLACES
        # The file lock excludes other processes; threads of this process need another lock.
        with self._in_process.setdefault(place, threading.Lock()):
            while self._file is not None:
                until, pause, _ = self._read(credentials)
                if pause == 0.0 and self._timer() < until:
                    break
                try:
                    fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise Unavailable("the bind of another process takes too long") from None
                    time.sleep(0.01)
            try:
                yield
            finally:
                if self._file is not None:
                    fcntl.lockf(self._file, fcntl.LOCK_UN, 1, place)


def _hash(options: LdapOptions) -> int:
    """Return the hash of the credentials; forked processes share Python's secret for hashes."""
    bind = options.bind
    password = bind.password.get_secret_value() if bind and bind.password else None
    return hash((tuple(sorted(options.uris)), bind and bind.dn, password))


REFUSALS = Refusals()
