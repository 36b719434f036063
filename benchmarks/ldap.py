"""Lookups in OpenLDAP without cache hits, compared with python-ldap alone on the event loop.

The server runs on the load's core. The bare side pipelines the same searches over one connection,
without checks of the results.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from benchmarks import dataset
from benchmarks.directories import directory_of
from benchmarks.figures import Figure, Target, microseconds, ratio
from benchmarks.plan import Plan
from benchmarks.rounds import Timing, concurrent, interleave, walls
from benchmarks.wire.process import free_port
from tornado_idv import ByNickname, Purge, Query

OURS, BARE = "Directory.find", "search_ext and result3 of python-ldap"
_TARGET = Target("least", 0.5)
_TASKS = 32
_PATH = f"{os.environ['PATH']}:/usr/sbin"
_SUFFIX = "dc=example,dc=org"
_DN, _PASSWORD = f"cn=admin,{_SUFFIX}", "measured"
_CONFIG = """\
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
modulepath /usr/lib/ldap
moduleload back_mdb
database mdb
maxsize 1073741824
suffix "{suffix}"
rootdn "{dn}"
rootpw {password}
directory {folder}
index objectClass,uid,employeeNumber eq
"""
_TREE = (
    f"dn: {_SUFFIX}\nobjectClass: dcObject\nobjectClass: organization\no: Example\ndc: example\n"
)
_PERSON = f"""
dn: uid={{nickname}},{_SUFFIX}
objectClass: inetOrgPerson
uid: {{nickname}}
cn: {{nickname}}
sn: {{nickname}}
employeeNumber: {{card}}
title: Free
"""
_TIMEOUT = 30.0


def missing() -> str | None:
    """Return the reason for not measuring it, or ``None``."""
    if shutil.which("slapd", path=_PATH) is None or find_spec("ldap") is None:
        return "slapd or python-ldap is not installed; see `make test-tools`"
    return None


async def ldap(plan: Plan) -> list[Figure]:
    """Measure concurrent lookups, each with a search."""
    if plan.skip("ldap", missing()):
        return []
    keys = dataset.queries(plan.keys, plan.keys)
    with _running(plan) as uri:
        options = {
            "kind": "ldap",
            "uris": [uri],
            "bind": {"dn": _DN, "password": _PASSWORD},
            "base_dn": _SUFFIX,
            "by_nickname": {"filter": "(uid={nickname})"},
            "by_card": {"filter": "(employeeNumber={card_number})"},
            "response": {"nickname": "uid", "card_number": "employeeNumber", "plan": "title"},
        }
        bare = await asyncio.to_thread(_Bare, uri)
        async with directory_of(options, plan.folder / "ldap.config.yaml") as (directory, _):

            async def find() -> Timing:
                directory.cache.apply(Purge())
                return await concurrent(directory.find, keys, _TASKS)

            with bare.reading():
                timings = await interleave(
                    plan,
                    "lookups in OpenLDAP",
                    {OURS: find, BARE: lambda: concurrent(bare.search, keys, _TASKS)},
                )
    ours, theirs = walls(timings[OURS]), walls(timings[BARE])
    return [
        *(microseconds(f"lookup in OpenLDAP by {name}", walls(timings[name])) for name in timings),
        ratio(f"throughput of {OURS} over OpenLDAP, beside {BARE}", theirs, ours, _TARGET),
    ]


class _Bare:
    """A connection of python-ldap, and a future for each search."""

    def __init__(self, uri: str) -> None:
        import ldap as library  # noqa: PLC0415 - it is an extra

        self._library = library
        self._handle: Any = library.initialize(uri)
        self._handle.simple_bind_s(_DN, _PASSWORD)
        self._pending: dict[int, asyncio.Future[Any]] = {}

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read responses on the event loop while the context is open."""
        loop, descriptor = asyncio.get_running_loop(), self._handle.fileno()
        os.set_blocking(descriptor, False)
        loop.add_reader(descriptor, self._on_readable)
        try:
            yield
        finally:
            loop.remove_reader(descriptor)
            self._handle.unbind_s()

    async def search(self, query: Query) -> Any:
        name = "uid" if isinstance(query, ByNickname) else "employeeNumber"
        filter_ = f"({name}={query.text.removeprefix('@')})"
        attributes = ["uid", "employeeNumber", "title"]
        scope = self._library.SCOPE_SUBTREE
        number = self._handle.search_ext(_SUFFIX, scope, filter_, attributes, sizelimit=2)
        future = self._pending[number] = asyncio.get_running_loop().create_future()
        return await future

    def _on_readable(self) -> None:
        while True:
            kind, result, number, _ = self._handle.result3(self._library.RES_ANY, 1, 0)
            if kind is None:
                return
            self._pending.pop(number).set_result(result)


@contextmanager
def _running(plan: Plan) -> Iterator[str]:
    """Run a server with the plan's users on the load's core. Yield its URI."""
    folder = plan.folder / "slapd"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    config, people = folder / "slapd.conf", folder / "people.ldif"
    text = _CONFIG.format(suffix=_SUFFIX, dn=_DN, password=_PASSWORD, folder=folder.resolve())
    config.write_text(text, encoding="utf-8")
    persons = (
        _PERSON.format(nickname=dataset.nickname(number), card=dataset.card_number(number))
        for number in range(plan.keys)
    )
    people.write_text("".join([_TREE, *persons]), encoding="utf-8")
    environment = {"PATH": _PATH}
    command = ["slapadd", "-q", "-f", str(config), "-l", str(people)]
    subprocess.run(command, check=True, capture_output=True, env=environment, timeout=_TIMEOUT)
    port = free_port()
    uri = f"ldap://127.0.0.1:{port}"
    process = subprocess.Popen(
        ["taskset", "-c", str(plan.load_core), "slapd", "-h", uri, "-f", str(config), "-d", "0"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(port)
        yield uri
    finally:
        process.kill()
        process.wait(_TIMEOUT)


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return
