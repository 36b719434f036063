"""A real service on a free port, in a thread of its own, and a plain client for it."""

import asyncio
import json
import socket
import sqlite3
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port

from tornado_idv.config.load import ConfigFile
from tornado_idv.keys.ring import KeyRing
from tornado_idv.keys.token import issue
from tornado_idv.registry import installed_kinds, plugin_manager
from tornado_idv.service.directories import open_directory
from tornado_idv.service.events import Events
from tornado_idv.service.reload import Configuration, Limiters
from tornado_idv.service.service import Service, service_of_one_process
from tornado_idv.web.access_log import AccessLog
from tornado_idv.web.app import all_routes, make_api
from tornado_idv.web.lookups import ApiContext

KEY = issue("caller")
EXPIRED_KEY = issue("expired")
CARDS_ONLY_KEY = issue("cards")
CONFIG = f"""\
profile_sites: [https://profiles.example]
server: {{port: 0, body_timeout: 500ms, idle_timeout: 1s}}
auth:
  keys:
    - {{id: caller, token: {KEY}}}
    - {{id: expired, token: {EXPIRED_KEY}, expires: 2020-01-01T00:00:00Z}}
    - {{id: cards, token: {CARDS_ONLY_KEY}, scopes: [identify:card]}}
backends:
"""
USERS = "  - {name: users, kind: yaml, path: users.yaml}\n"
FIXTURE = """\
users:
  - {nickname: "@alice", card_number: "4000123412341234", plan: Free}
"""
T = TypeVar("T")
_URL, _CARD = "/api/v1/identify/url", "/api/v1/identify/card"
_FIELDS = {"Host": "x", "Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}


@dataclass(frozen=True)
class Reply:
    """One answer as it came over the wire; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str | None:
        """The code of the error record, None for a body that is none."""
        record = json.loads(self.body) if self.body else {}
        return record.get("code") if record.get("status") == "error" else None


@dataclass(frozen=True)
class Connection:
    """An open connection, on which requests may follow each other."""

    _sock: socket.socket
    _stream: BufferedReader

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def read_reply(self) -> Reply | None:
        """Return the next reply; None if the peer has closed the connection."""
        status_line = self._stream.readline()
        if not status_line:
            return None
        status = int(status_line.split()[1])
        headers = {}
        while (line := self._stream.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        return Reply(status, headers, self._stream.read(int(headers.get("content-length", "0"))))


def open_socket(port: int | Path) -> socket.socket:
    if isinstance(port, int):
        return socket.create_connection(("127.0.0.1", port), timeout=10)
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(10)
    try:
        sock.connect(str(port))
    except BaseException:
        sock.close()
        raise
    return sock


class Client:
    """Sends bytes to a port, or the path of a Unix socket, and reads what comes back."""

    def __init__(self, port: int | Path, tls: ssl.SSLContext | None = None) -> None:
        self.port = port
        self._tls = tls

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        with ExitStack() as stack:
            sock = stack.enter_context(open_socket(self.port))
            if self._tls is not None:
                sock = stack.enter_context(self._tls.wrap_socket(sock))
            yield Connection(sock, stack.enter_context(sock.makefile("rb")))

    def raw(self, data: bytes, expect: int = 1) -> list[Reply]:
        """The answers to some bytes: at most ``expect`` of them, fewer if the peer closes."""
        with self.connection() as connection:
            connection.send(data)
            replies: list[Reply] = []
            while len(replies) < expect and (reply := connection.read_reply()) is not None:
                replies.append(reply)
            return replies

    def until_closed(self, data: bytes) -> list[Reply]:
        """All answers up to the peer's closing of the connection."""
        return self.raw(data, expect=1000)

    def post(self, path: str, body: bytes, headers: dict[str, str] | None = None) -> Reply:
        """The answer to a POST with our key, JSON as its type, and the headers given."""
        return self.send("POST", path, {**_FIELDS, **(headers or {})}, body)

    def send(self, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> Reply:
        """The answer to one well-framed request with just these headers."""
        (reply,) = self.raw(_message(method, path, headers, body))
        return reply

    def by_input(self, text: str) -> Reply:
        return self.post(_URL, json.dumps({"input": text}).encode())

    def by_card(self, text: str) -> Reply:
        return self.post(_CARD, json.dumps({"card_number": text}).encode())


def lookup_request(text: str, key: str = KEY, path: str = "") -> bytes:
    """Return the request with a key for a card number, or else a nickname or profile URL."""
    of_kind, member = (_CARD, "card_number") if text.isdigit() else (_URL, "input")
    return post_request(path or of_kind, {member: text}, key)


@contextmanager
def begun_request(client: Client) -> Iterator[tuple[Connection, bytes]]:
    """Yield a connection on which all of a lookup but its body is sent, and the body."""
    head, _, body = lookup_request("@alice").partition(b"\r\n\r\n")
    with client.connection() as connection:
        connection.send(head + b"\r\nExpect: 100-continue\r\n\r\n")
        assert status_of(connection.read_reply()) == 100
        yield connection, body


def status_of(reply: Reply | None) -> int | None:
    """Return the status of a reply; None if the connection has ended instead."""
    return reply.status if reply else None


def post_request(path: str, record: object, key: str = KEY) -> bytes:
    fields = {**_FIELDS, "Authorization": f"Bearer {key}"}
    return _message("POST", path, fields, json.dumps(record).encode())


def _message(method: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items() if value is not None]
    return "\r\n".join([*lines, "", ""]).encode() + body


def write_config(folder: Path, config: str = CONFIG + USERS) -> Path:
    """Write a configuration, and its `USERS` unless they are there; return its path."""
    if not (folder / "users.yaml").exists():
        (folder / "users.yaml").write_text(FIXTURE, encoding="utf-8")
    path = folder / "config.yaml"
    path.write_text(config, encoding="utf-8")
    return path


def load_configuration(path: Path, *plugins: object) -> Configuration:
    """Return the configuration of a process that was started with this file."""
    manager, file = plugin_manager(plugins=plugins), ConfigFile.read(path)
    kinds = installed_kinds(manager)
    settings = file.load(kinds, {})
    return Configuration(file, settings, manager, kinds, Limiters(settings.limits))


@asynccontextmanager
async def serving_here(
    config: str, folder: Path, *plugins: object, log: AccessLog | None = None
) -> AsyncIterator[Service]:
    """Runs the service of this configuration, as `write_config` does, in the running loop."""
    current = load_configuration(write_config(folder, config), *plugins)
    logs: Any = SimpleNamespace(access=log, writer=SimpleNamespace(dropped=0))
    async with service_of_one_process(current, logs, events=Events()) as service:
        yield service


@asynccontextmanager
async def on_tornado_server(folder: Path) -> AsyncIterator[int]:
    """Run the application over a fixture file on Tornado's own HTTP server; yield its port."""
    manager = plugin_manager()
    settings = ConfigFile.read(write_config(folder)).load(installed_kinds(manager), {})
    keys = KeyRing(each.api_key for each in settings.auth.keys)
    async with open_directory(settings, manager) as directory:
        services = ApiContext(directory, settings.make_identifiers(), keys)
        server = HTTPServer(make_api(services, routes=all_routes(settings)))
        sock, port = bind_unused_port()
        server.add_socket(sock)
        yield port
        server.stop()
        await server.close_all_connections()


@contextmanager
def in_thread(
    opened: AbstractAsyncContextManager[T],
) -> Iterator[tuple[T, asyncio.AbstractEventLoop]]:
    """Enter a context in the loop of a new thread; yield its value and the loop."""
    started: Future[tuple[T, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        stop = asyncio.Event()
        async with opened as value:
            started.set_result((value, asyncio.get_running_loop(), stop))
            await stop.wait()

    def main() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=main, daemon=True)
    thread.start()
    value, loop, stop = started.result(timeout=10)
    try:
        yield value, loop
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(timeout=10)


@contextmanager
def serving(config: str, folder: Path) -> Iterator[Service]:
    """Run the service of this configuration, as `write_config` does, in a thread."""
    with in_thread(serving_here(config, folder)) as (service, _):
        yield service


@contextmanager
def serving_yaml(folder: Path) -> Iterator[Service]:
    with serving(CONFIG + USERS, folder) as service:
        yield service


@contextmanager
def serving_sqlite(folder: Path) -> Iterator[Service]:
    """The service over a database of the service's own table."""
    make_database(folder / "users.db", ("alice", "4000123412341234", "Free", None))
    with serving(CONFIG + "  - {name: users, kind: sqlite, path: users.db}\n", folder) as service:
        yield service


@contextmanager
def serving_upstream(folder: Path) -> Iterator[Service]:
    """The service in front of another instance of itself."""
    (folder / "origin").mkdir()
    with serving_yaml(folder / "origin") as origin:
        backend = (
            f"  - {{name: origin, kind: upstream, base_url: '{origin.url}',"
            f" timeout: 1.9s, auth: {{kind: bearer, token: {KEY}}}}}\n"
        )
        with serving(CONFIG + backend, folder) as service:
            yield service


def make_database(path: Path, *users: tuple[str, str, str, str | None]) -> None:
    """Writes a database with the table that the service makes itself."""
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE TABLE users (nickname TEXT PRIMARY KEY, card_number TEXT NOT NULL UNIQUE,"
        " plan TEXT NOT NULL, profile_url TEXT)"
    )
    connection.executemany("INSERT INTO users VALUES (?, ?, ?, ?)", users)
    connection.commit()
    connection.close()
