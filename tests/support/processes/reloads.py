"""A service in this event loop whose configuration a test replaces, and a client of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from support.processes.service import KEY, lookup_request, serving_here
from tornado_idv.admin.report import ReloadResult
from tornado_idv.config.load import ConfigFile
from tornado_idv.config.settings import Settings
from tornado_idv.errors import StartError, Unavailable
from tornado_idv.interfaces.backend import Backend, BackendOptions
from tornado_idv.interfaces.hookspecs import Kinds, hookimpl
from tornado_idv.log_format import json_lines
from tornado_idv.model import ByNickname, Query, User
from tornado_idv.options import Password
from tornado_idv.registry import installed_kinds, plugin_manager
from tornado_idv.service.service import Service
from tornado_idv.web.access_log import AccessLog


class GatedOptions(BackendOptions):
    plan: str = "A"
    opens: bool = True
    password: Password | None = None


class Gated(Backend[GatedOptions]):
    """Knows every lower-case nickname; a test holds its lookups, and lets them fail."""

    options_type: ClassVar[type[BackendOptions]] = GatedOptions
    made: ClassVar[list[Gated]] = []

    def __init__(self, options: GatedOptions) -> None:
        super().__init__(options)
        self.asked = 0
        self.is_open = False
        self.down = False
        self.begun = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.made.append(self)

    async def open(self) -> None:
        if not self.options.opens:
            raise StartError(f"backend {self.name} does not open")
        self.is_open = True

    async def find(self, query: Query) -> User | None:
        self.asked += 1
        self.begun.set()
        assert self.is_open, "asked while it is closed"
        await self.gate.wait()
        assert self.is_open, "closed while it is asked"
        if self.down:
            raise Unavailable("down")
        if not isinstance(query, ByNickname) or not query.nickname.islower():
            return None
        if query.nickname.startswith(self.name):
            return None
        return User(self.options.plan, "4000", query.nickname)

    async def close(self) -> None:
        self.is_open = False


class Plugin:
    @hookimpl
    def idv_kinds(self) -> Kinds:
        return Kinds({"gated": Gated})


class Response(NamedTuple):
    status: int
    record: dict[str, Any]


class KeepAlive:
    """One connection, kept open."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.reader = reader

    async def ask(self, text: str, **options: str) -> Response:
        """Send a request, and return its response."""
        self.writer.write(lookup_request(text, **options))
        return await self.read()

    async def read(self) -> Response:
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        body = await self.reader.readexactly(length)
        return Response(int(head.split()[1]), json.loads(body))


class ReloadHarness:
    """A running service, its file, and its access log."""

    def __init__(self, service: Service, path: Path, logged: list[str], log: AccessLog) -> None:
        self.service = service
        self.path = path
        self._logged = logged
        self._log = log

    def write(self, text: str) -> None:
        self.path.write_text(text, encoding="utf-8")

    def load(self) -> Settings:
        """Return the settings of the file."""
        kinds = installed_kinds(plugin_manager(plugins=[Plugin()]))
        return ConfigFile.read(self.path).load(kinds, {})

    async def reload(self, text: str | None = None) -> ReloadResult:
        """Reload, with another file if one is given."""
        if text is not None:
            self.write(text)
        return await asyncio.wait_for(self.service.reloader.reload("test"), 10)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[KeepAlive]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.service.port)
        try:
            yield KeepAlive(reader, writer)
        finally:
            writer.close()

    async def ask(self, text: str, **options: str) -> Response:
        """Return the response to a request on a new connection."""
        async with self.connected() as client:
            return await client.ask(text, **options)

    async def held(self, client: KeepAlive, text: str = "@alice", field: bytes = b"") -> Gated:
        """Send a lookup; return the first backend that was made, which holds it from now on."""
        backend = Gated.made[0]
        backend.gate.clear()
        backend.begun.clear()
        client.writer.write(lookup_request(text).replace(b"Host:", field + b"Host:"))
        await backend.begun.wait()
        return backend

    def cached(self) -> list[str | None]:
        """Return what the cache contributed to each lookup up to now."""
        self._log.flush()
        return [json.loads(line).get("cache") for line in "".join(self._logged).splitlines()]


GATED = "{name: %s, kind: gated, plan: %s}"
A = GATED % ("users", "A")
B = GATED % ("users", "B")


def config(
    *backends: str,
    site: str = "https://a.example",
    key: str = KEY,
    server: str = "",
    more: str = "",
) -> str:
    return (
        f"profile_sites: [{site}]\nserver: {{port: 0, {server}}}\n"
        f"auth: {{keys: [{{id: caller, token: {key}}}]}}\n"
        f"backends: [{', '.join(backends or (A,))}]\nadmin: {{port: 0}}\n{more}"
    )


@asynccontextmanager
async def reloadable(folder: Path, text: str) -> AsyncIterator[ReloadHarness]:
    """Yield a service of this configuration."""
    Gated.made.clear()
    logged: list[str] = []
    log = AccessLog(logged.append, json_lines)
    async with serving_here(text, folder, Plugin(), log=log) as service:
        yield ReloadHarness(service, folder / "config.yaml", logged, log)
