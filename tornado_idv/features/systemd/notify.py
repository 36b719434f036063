"""Notifications for the service manager, as described in `sd_notify(3)`."""

import logging
import os
import socket
import time
from collections.abc import Mapping

from tornado_idv.service.events import Event

_log = logging.getLogger(__name__)


class Notifier:
    """Sends the state of the service to the service manager in ``environ``, if there is one.

    ``interval`` is the time between keep-alives in seconds: half the timeout of the manager's
    watchdog, or ``None`` without a watchdog.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = environ.get("NOTIFY_SOCKET")
        timeout = environ.get("WATCHDOG_USEC", "")
        is_ours = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        watched = self._address is not None and is_ours and timeout.isdigit() and int(timeout) > 0
        self.interval = int(timeout) / 2e6 if watched else None

    def __call__(self, event: Event, /) -> None:
        """Notify the service manager of an event."""
        match event:
            case "ready":
                self._send("READY=1", f"MAINPID={os.getpid()}")
            case "reloading":
                self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
            case "stopping":
                self._send("STOPPING=1")
            case "alive":
                self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        address = self._address
        if address is None:
            return
        if address.startswith("@"):
            address = f"\0{address[1:]}"  # an abstract socket
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.settimeout(0.2)  # at boot, the queue of the manager may be full for a moment
                sock.connect(address)
                sock.send("\n".join(lines).encode())
        except OSError as error:
            _log.warning("the service manager cannot be notified: %s", error.strerror or error)
