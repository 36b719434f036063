"""A user directory over HTTP in a thread, which fails and waits as a test tells it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from support.http.threaded_server import serving_in_thread
from tornado_idv.model import User


class LiveDirectory(ThreadingHTTPServer):
    """Responds as an instance of this service does.

    ``requests`` are the texts that were looked up. A text in ``down`` gets a 503, one in ``held``
    waits for ``gate``, and one in ``absent`` finds no user.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *users: User) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.users = list(users)
        self.requests: list[str] = []
        self.down: set[str] = set()
        self.held: set[str] = set()
        self.absent: set[str] = set()
        self.gate = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def respond(self, text: str, fields: Message) -> tuple[int, dict[str, Any]]:
        """Return the status and the body for a nickname with @ or a card number."""
        self.requests.append(text)
        failed = text in self.down
        if text in self.held:
            self.gate.wait(20)
        if failed:
            return 503, {"status": "error", "code": "unavailable", "message": "Try again"}
        for user in self.users if text not in self.absent else []:
            if text in {f"@{user.nickname}", user.card_number}:
                return 200, record(user)
        return 404, {"status": "error", "code": "not_found", "message": "User not found"}


def record(user: User) -> dict[str, Any]:
    return {
        "status": "ok",
        "plan": user.plan,
        "card_number": user.card_number,
        "nickname": f"@{user.nickname}",
        "profile_url": user.profile_url or f"https://profiles.example/m/{user.nickname}",
    }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        (text,) = json.loads(self.rfile.read(length)).values()
        status, record = cast("LiveDirectory", self.server).respond(text, self.headers)
        body = json.dumps(record).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def live_directory(*users: User) -> Iterator[LiveDirectory]:
    with serving_in_thread(LiveDirectory(*users)) as server:
        try:
            yield server
        finally:
            server.gate.set()
