"""Pauses after refused credentials. Without pauses, servers could lock the account.

All processes of a service share these pauses, in memory that is allocated before the first fork.
Changed credentials are tried immediately.
"""

import fcntl
import os
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from mmap import mmap

from tornado_idv import Broken, Unavailable

_FIRST_PAUSE, _FACTOR, _MAX_PAUSE = 60.0, 10.0, 3600.0
"""Pauses of 1, 10 and then 60 minutes. Most servers allow 3 failed binds in half an hour."""
_ACCEPTED_FOR = 10.0
"""Seconds for which concurrent binds are allowed after an accepted bind.

Otherwise, if a server hangs, each process would wait for the binds of the others."""
_PLACES = 4096
"""Number of records. Credentials with the same hash modulo this number share a record."""
_RECORD = struct.Struct("qdd232s")
"""A record: the hash of the credentials, the end and the length of the pause, and the reason.

The length of the pause is 0 for accepted credentials."""


class Refused(Broken):
    """Raised if the server refuses the credentials. The next attempt follows after a pause."""


class Refusals:
    """The pauses of all credentials. ``timer`` returns the same seconds in all processes.

    A hash identifies credentials. All processes are forked, so they have the same hashes.
    """

    def __init__(self, timer: Callable[[], float] = time.monotonic) -> None:
        self._timer = timer
        self._records = mmap(-1, _PLACES * _RECORD.size)
        self._in_process: dict[int, threading.Lock] = {}
        # A file lock ends with its process. Except on Linux, a service is a single process.
        self._file = os.memfd_create("idv_ldap") if sys.platform == "linux" else None

    def check(self, credentials: int) -> float:
        """Raise `Refused` during a pause of these credentials.

        Return the length of the last pause, or 0 if the credentials were not refused.
        """
        until, pause, reason = self._read(credentials)
        if pause and self._timer() < until:
            raise Refused(reason.rstrip(b"\0").decode())
        return pause

    @contextmanager
    def attempt(self, credentials: int, timeout: float) -> Iterator[None]:
        """Allow one bind with these credentials at a time in all processes, and record the result.

        For `_ACCEPTED_FOR` seconds after an accepted bind, concurrent binds are allowed. Raises
        `Refused` during a pause, and `Unavailable` if another process takes longer than ``timeout``
        seconds.
        """
        with self._locked(credentials, timeout):
            pause = self.check(credentials)
            try:
                yield
            except Refused as error:
                pause = min(pause * _FACTOR or _FIRST_PAUSE, _MAX_PAUSE)
                self._write(credentials, self._timer() + pause, pause, error.reason.encode())
                raise
            self._write(credentials, self._timer() + _ACCEPTED_FOR, 0.0, b"")

    def _read(self, credentials: int) -> tuple[float, float, bytes]:
        known, *record = _RECORD.unpack_from(self._records, credentials % _PLACES * _RECORD.size)
        return (record[0], record[1], record[2]) if known == credentials else (0.0, 0.0, b"")

    def _write(self, credentials: int, *values: object) -> None:
        _RECORD.pack_into(self._records, credentials % _PLACES * _RECORD.size, credentials, *values)

    @contextmanager
    def _locked(self, credentials: int, timeout: float) -> Iterator[None]:
        deadline, place = time.monotonic() + timeout, credentials % _PLACES
        # The file lock excludes only other processes, so threads need a second lock.
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
                        raise Unavailable("the bind of another worker takes too long") from None
                    time.sleep(0.01)
            try:
                yield
            finally:
                if self._file is not None:
                    fcntl.lockf(self._file, fcntl.LOCK_UN, 1, place)


REFUSALS = Refusals()
