"""The key ``ready``, and whether it speaks of the server that is asked."""

from __future__ import annotations

import re

_RUN_ID = re.compile(rb"[0-9a-f]{40}")


class ReadyKeys:
    """Runs of servers, and keys ``ready`` that were missing, as this process has seen them.

    A snapshot or a replica may be older than the last writes and have the key, too. So one that
    names the run of a server (``run_id``) counts for that run alone, and any other one not after
    a restart or a failover that this process has noticed.
    """

    def __init__(self) -> None:
        self._runs: dict[str, bytes] = {}
        self._missing: dict[str, bytes] = {}

    def problem(self, key: str, value: bytes | None, run_id: bytes, server: str = "") -> str | None:
        """Return why the server may lack users, if it may; ``value`` is that of the key."""
        known_runs = {self._runs.setdefault(server, run_id), self._missing.get(key)}
        if not value:
            self._missing[key] = run_id
            return "is missing, so the users are not all loaded"
        if value == run_id or (run_id in known_runs and not _RUN_ID.fullmatch(value)):
            return None
        return (
            "is of before the server was restarted or another one took over, and the last users "
            "may be lost; load all users and set it to the run_id of the server"
        )
