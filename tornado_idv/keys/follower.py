"""Reads changes of the key store while the service runs, and writes the last use of keys.

Reads and writes may wait for the disk, a server or a lock, so they run in a thread. A poll of a
file opens it, compares the revision of the store with the last one, and closes it within 0.2 ms.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from tornado_idv.daemon_thread import DaemonThread
from tornado_idv.errors import KeyStoreError, MissingKeyStoreError
from tornado_idv.keys.api_key import ApiKey
from tornado_idv.keys.store import EMPTY, KeyStoreLocation

_log = logging.getLogger(__name__)
_BUSY_TIMEOUT = 0.5
_SERVER_TIMEOUT = 0.5
_SERVER_INTERVAL = 10.0
"""Seconds between checks that only one server of a replicated store accepts changes."""


class StoreFollower:
    """Reads the keys of a store into ``keys``. Call the methods only through ``in_thread``.

    ``error`` is the current problem with the store, or ``None``. ``since`` is the Unix time at
    which ``error`` last changed. ``timer`` returns monotonic seconds, ``clock`` Unix time.
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
        """The keys of the last successful read."""
        self._written: dict[str, float] = {}
        self._write_failed = False

    def read(self) -> None:
        """Read changes of the store since the last call. Raises `KeyStoreError`.

        An unchanged key stays the same object. Without any change, ``keys`` is the same object.
        """
        with self.location.opened(busy_timeout=_BUSY_TIMEOUT) as store:
            if self.location.overwritten:
                self._snapshot = EMPTY
                self.location.overwritten = False
            snapshot = store.api_keys(self._snapshot)
        if snapshot is not self._snapshot:
            self._warn_of_returned(snapshot.keys)
            self._snapshot = snapshot
            self.keys = list(snapshot.keys.values())

    def poll(self) -> None:
        """Read changes of the store. Log a failure once; the next call tries again.

        Every 10 s, also check that no second server of the store accepts changes.
        """
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
                text = "%s; until this is repaired, the keys that were read before stay valid"
                _log.error(text, reason)
                self.error, self.since = reason, self._clock()
        else:
            if self.error is not None:
                _log.info("%s: the key store can be read again", self.location.name)
                self.error, self.since = None, self._clock()

    def _warn_of_returned(self, keys: Mapping[bytes, ApiKey]) -> None:
        """Warn of keys that became valid again, or expire later than before.

        An import may cause this. So may a restore or a failover, if it loses the last changes.
        """
        returned = set()
        for token_digest, key in keys.items():
            before = self._known.get(token_digest, key)
            if before is not key and (
                before.rejected == "revoked" != key.rejected
                or (before.rejected is None and key.expires > before.expires)
            ):
                returned.add(key.id)
        self._known.update(keys)  # removed keys stay in it, because they may return, too
        for key_id in sorted(returned):
            text = "%s: a failover, a restore or an import has undone the revocation of the key %s,"
            advice = "or delayed its expiry; revoke the key again unless this is intended"
            _log.warning(f"{text} {advice}", self.location.name, key_id)

    def write_last_used(self, times: Mapping[str, float], *, is_last: bool = False) -> None:
        """Write the last use of keys in the store.

        A failure is logged once. With ``is_last`` it is logged again, because the times are lost.
        """
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
                _log.warning("%s; the last use of keys is %s", error, outcome)
            self._write_failed = True
        else:
            self._written.update(later)
            self._write_failed = False

    def close(self, times: Mapping[str, float]) -> None:
        """Write the last use of keys, and close the store."""
        self.write_last_used(times, is_last=True)
        self.location.close()
