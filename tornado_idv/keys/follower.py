"""Follows the key store while the service runs, and writes when keys were last used.

Everything here may wait for the disk, a server or a lock, so it runs in a thread. A file is open
only while its revision is compared, which takes 0.2 ms (see `store_file`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from tornado_idv.daemon_thread import DaemonThread
from tornado_idv.errors import KeyStoreError, MissingKeyStoreError
from tornado_idv.keys.api_key import ApiKey
from tornado_idv.keys.record import EMPTY
from tornado_idv.keys.store_location import KeyStoreLocation

_log = logging.getLogger(__name__)
_BUSY_TIMEOUT = 0.5
_SERVER_TIMEOUT = 0.5
_SERVER_INTERVAL = 10.0
"""Seconds between two looks for other servers with the store."""


class StoreFollower:
    """The keys of one store, as of its last good state. For one thread at a time: ``in_thread``.

    ``error`` says why it cannot be read, ``since`` when that began or ended. ``timer`` and
    ``clock`` return seconds, the second Unix time, as is ``since``.
    """

    def __init__(
        self,
        location: KeyStoreLocation,
        timer: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.location = location
        self.in_thread = DaemonThread("key store")
        self.error: str | None = None
        self.since = clock()
        self._check_at = 0.0
        self._known: dict[bytes, ApiKey] = {}
        self._timer = timer
        self._clock = clock
        self._snapshot = EMPTY
        self.keys: Sequence[ApiKey] = ()
        """The keys that were read last."""
        self._written: dict[str, float] = {}
        self._write_failed = False

    def read(self) -> None:
        """Read what has changed since the last call; raises `KeyStoreError`.

        A key that has not changed is the same object, as are all ``keys`` if none has.
        """
        with self.location.opened(busy_timeout=_BUSY_TIMEOUT) as store:
            snapshot = store.api_keys(self._snapshot)
        if snapshot is not self._snapshot:
            self._warn_of_returned(snapshot.keys)
            self._snapshot = snapshot
            self.keys = list(snapshot.keys.values())

    def poll(self) -> None:
        """Do as `read`, but log a failure, once, and try again at the next call."""
        try:
            self.read()
            if self._timer() >= self._check_at or self.error is not None:
                self.location.require_one_server(_SERVER_TIMEOUT)
                self._check_at = self._timer() + _SERVER_INTERVAL
        except KeyStoreError as error:
            if self.error is None:
                reason = str(error)
                if isinstance(error, MissingKeyStoreError):
                    reason = f"{self.location.name}: the key store is gone; restore it"
                text = "%s; until that is repaired, the keys read before stay in force"
                _log.error(text, reason)
                self.error, self.since = reason, self._clock()
        else:
            if self.error is not None:
                _log.info("%s: the key store can be read again", self.location.name)
                self.error, self.since = None, self._clock()

    def _warn_of_returned(self, keys: Mapping[bytes, ApiKey]) -> None:
        """Log which keys are valid again, or for longer; of all commands only an import does so."""
        returned = set()
        for token_digest, key in keys.items():
            before = self._known.get(token_digest, key)
            if before is not key and (
                before.rejected == "revoked" != key.rejected
                or (before.rejected is None and key.expires > before.expires)
            ):
                returned.add(key.id)
        self._known.update(keys)
        for key_id in sorted(returned):
            text = "%s: the key %s was revoked or expired earlier, and a failover, a restore or an"
            advice = "import has undone that; if that is not meant, revoke it again"
            _log.warning(f"{text} {advice}", self.location.name, key_id)

    def write_last_used(self, times: Mapping[str, float], *, is_last: bool = False) -> None:
        """Write when keys of the store were last used; log a failure, once, and the last one."""
        ids = {key.id for key in self.keys}
        later = {
            key_id: used
            for key_id, used in times.items()
            if key_id in ids and used > self._written.get(key_id, 0.0)
        }
        if not later or self.error is not None:
            return
        try:
            with self.location.opened(busy_timeout=_BUSY_TIMEOUT) as store:
                store.write_last_used(later)
        except KeyStoreError as error:
            if is_last or not self._write_failed:
                outcome = "not written" if is_last else "written later"
                _log.warning("%s; when keys were last used is %s", error, outcome)
            self._write_failed = True
        else:
            self._written.update(later)
            self._write_failed = False

    def close(self, times: Mapping[str, float]) -> None:
        """Write when keys were last used, and close the store."""
        self.write_last_used(times, is_last=True)
        self.location.close()
