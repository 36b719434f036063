"""A test double of the service in a separate process, for tests of client programs."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tornado_idv.errors import StartError

if TYPE_CHECKING:  # a service in demo mode imports this package without them
    from tornado_idv.client import Client, User

_TIMEOUT = 10.0


class IdentityService:
    """A running test double. The program under test uses its ``url`` and ``key``.

    An identifier is a nickname with ``@``, a profile URL or a card number. The methods raise
    `ValueError` for an invalid user or fault.
    """

    def __init__(self, url: str, key: str, admin_url: str) -> None:
        self.url = url
        self.key = key
        self._admin = admin_url.removeprefix("http://")

    @classmethod
    @contextmanager
    def start(cls) -> Iterator[IdentityService]:
        """Run a double without users on a free port until the end of the ``with`` block.

        Raises `StartError`.
        """
        with TemporaryDirectory(prefix="tornado-idv-") as folder:
            users, log = Path(folder, "users.yaml"), Path(folder, "log")
            users.write_text("users: []\n", encoding="utf-8")
            command = [sys.executable, "-P", "-m", "tornado_idv", "serve", "--demo", str(users)]
            command += ["--port", "0", "--ready-fd", "1", "--stop-on-eof"]
            pipe = subprocess.PIPE  # if the test run is killed, EOF on stdin stops the double
            with (
                log.open("wb") as errors,
                subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors) as process,  # noqa: S603 - our own command
            ):
                try:
                    line = process.stdout.readline() if process.stdout else b""
                    if not line:
                        output = log.read_text("utf-8", "replace")
                        raise StartError(f"the test double did not start: {output}")
                    record = json.loads(line)
                    yield cls(record["url"], record["key"], record["admin_url"])
                finally:
                    process.terminate()  # EOF may be missing: a fork of the test may hold the pipe
                    try:
                        process.wait(_TIMEOUT)
                    except subprocess.TimeoutExpired:
                        process.kill()

    def add(self, user: User) -> None:
        """Add or replace a user."""
        record = {"plan": user.plan, "card_number": user.card_number}
        if user.profile_url:
            record["profile_url"] = user.profile_url
        nickname = "@" + user.nickname.removeprefix("@")
        self._send("PUT", f"/double/users/{quote(nickname, '')}", record)

    def fail(self, identifier: str = "all", **fault: Any) -> None:
        """Make lookups of one identifier, or all lookups, fail. See `Fault` for the arguments."""
        self._send("PUT", f"/double/faults/{quote(identifier, '')}", fault)

    def slow(self, identifier: str, seconds: float) -> None:
        """Delay the responses to lookups of one identifier by ``seconds``."""
        self.fail(identifier, delay=seconds)

    @property
    def requests(self) -> list[dict[str, Any]]:
        """All requests since the last reset, oldest first."""
        requests: list[dict[str, Any]] = self._send("GET", "/double/requests")["requests"]
        return requests

    def reset(self) -> None:
        """Remove all users, faults and recorded requests."""
        self._send("DELETE", "/double")

    def client(self) -> Client:
        """Return a new client of the double."""
        from tornado_idv.client import Client  # noqa: PLC0415

        return Client(self.url, self.key)

    def _send(self, method: str, path: str, record: object = None) -> dict[str, Any]:
        with closing(http.client.HTTPConnection(self._admin, timeout=_TIMEOUT)) as connection:
            fields = {"Content-Type": "application/json"}
            connection.request(method, path, None if record is None else json.dumps(record), fields)
            reply: dict[str, Any] = json.loads(connection.getresponse().read())
        if reply.get("status") == "error":
            raise ValueError(reply["message"])
        return reply
