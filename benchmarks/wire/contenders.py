"""The compared servers: this service and its peers, with the same users and key."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import dataset
from benchmarks.plan import Plan
from benchmarks.wire import conformance
from benchmarks.wire.our_service import OnTornadoServer, OurService, over_yaml
from benchmarks.wire.process import Command, Server, run_server
from benchmarks.wire.traffic import KEY

OURS = "this service"
WITHOUT_FAST_PATH = "this service, fast path off"
TORNADO = "our handlers on tornado's HTTPServer"
FASTAPI = "FastAPI on uvicorn"
AIOHTTP = "aiohttp"
STARLETTE = "Starlette on uvicorn"
FASTAPI_HTTPX = "FastAPI with httpx"
AIOHTTP_BOTH = "aiohttp with its own client"
FASTAPI_SQLALCHEMY = "FastAPI with SQLAlchemy"
ASGI = "a raw ASGI function on uvicorn"
ASGI_SOURCE = "a raw ASGI function over a source"
NGINX = "nginx returning a constant"

_UVICORN = ("uvicorn", "uvloop", "httptools")
_IN_VENV = {
    FASTAPI: ("fastapi", *_UVICORN),
    AIOHTTP: ("aiohttp", "orjson", "uvloop"),
    STARLETTE: ("starlette", "orjson", *_UVICORN),
    "Sanic": ("sanic", "orjson", "uvloop", "httptools"),
    "BlackSheep on uvicorn": ("blacksheep", "orjson", *_UVICORN),
    ASGI: ("asgi", "orjson", *_UVICORN),
    FASTAPI_HTTPX: ("fastapi_httpx", "fastapi", "httpx", *_UVICORN),
    AIOHTTP_BOTH: ("aiohttp_proxy", "aiohttp", "orjson", "uvloop"),
    FASTAPI_SQLALCHEMY: ("fastapi_sqlalchemy", "fastapi", "sqlalchemy", "asyncpg", *_UVICORN),
    ASGI_SOURCE: ("asgi_source", "orjson", "aiosqlite", "aiohttp", "asyncpg", *_UVICORN),
}
"""Peers in the virtual environment: module and required packages."""

PROXIES = (FASTAPI_HTTPX, AIOHTTP_BOTH)
_NO_SOURCE = set(_IN_VENV) - {*PROXIES, FASTAPI_SQLALCHEMY, ASGI_SOURCE}
_NO_PACKAGES = {"asgi", "asgi_source", "fastapi_httpx", "aiohttp_proxy", "fastapi_sqlalchemy"}

_VERSIONS = """\
from importlib.metadata import distributions
import json
print(json.dumps({each.name.lower(): each.version for each in distributions()}))
"""


@dataclass(frozen=True, slots=True)
class Contender:
    """A server's command line, and the check before its measurement."""

    command: Command
    check: Callable[[Server, int], None] = conformance.check


@dataclass(frozen=True, slots=True)
class _Peer:
    """A module of `benchmarks.peers`. Returns its command line for a port."""

    python: str
    module: str
    contract: Path

    def __call__(self, port: int) -> Sequence[str]:
        module = f"benchmarks.peers.{self.module}"
        return [self.python, "-m", module, str(port), str(self.contract)]


def ours(plan: Plan) -> dict[str, Contender]:
    """Return this service over a fixture, with and without the fast path."""
    return {
        OURS: Contender(OurService(plan.folder, over_yaml(plan))),
        WITHOUT_FAST_PATH: Contender(OurService(plan.folder, over_yaml(plan), fast_path=False)),
    }


def all_contenders(plan: Plan) -> dict[str, Contender]:
    """Return this service and each installed peer. Record the reasons for skipped peers."""
    sides = ours(plan)
    sides[TORNADO] = Contender(OnTornadoServer(OurService(plan.folder, over_yaml(plan))))
    contract = write_contract(plan.folder / "contract.json", plan.keys)
    sides |= peers(plan, contract, [name for name in _IN_VENV if name in _NO_SOURCE])
    if nginx() is None:
        plan.skipped[NGINX] = "nginx is not installed; on Debian: apt-get install nginx-light"
    else:
        peer = _Peer(sys.executable, "nginx", contract)
        sides[NGINX] = Contender(peer, conformance.check_constant)
    return sides


def peers(plan: Plan, contract: Path, names: Iterable[str]) -> dict[str, Contender]:
    """Return all named peers installed in the virtual environment."""
    sides, installed = {}, versions(plan.peers)
    for name in names:
        module, *needs = _IN_VENV[name]
        missing = {module, *needs} - _NO_PACKAGES - set(installed)
        if missing:
            packages = ", ".join(sorted(missing))
            plan.skipped[name] = f"{plan.peers} has no {packages}; make bench installs it"
        else:
            sides[name] = Contender(_Peer(str(plan.peers), module, contract))
    return sides


def run_contender(plan: Plan, name: str, side: Contender) -> AbstractAsyncContextManager[Server]:
    """Run one contender, with its output in a separate file."""
    return run_server(
        name, side.command, plan.folder / f"{re.sub('[^a-z]+', '-', name.lower())}.log"
    )


@asynccontextmanager
async def run_all(plan: Plan, sides: Mapping[str, Contender]) -> AsyncIterator[dict[str, Server]]:
    """Check the conformance of all contenders, and run them together."""
    async with AsyncExitStack() as stack:
        servers = {}
        with plan.step("servers", len(sides)) as advance:
            for name, side in sides.items():
                servers[name] = await stack.enter_async_context(run_contender(plan, name, side))
                side.check(servers[name], plan.keys)
                advance()
        yield servers


def nginx() -> str | None:
    """Return the path of nginx. Debian installs it in ``/usr/sbin``."""
    return shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")


def versions(python: Path) -> dict[str, str]:
    """Return the installed packages of an interpreter, or none for a missing one."""
    if not python.exists():
        return {}
    output = subprocess.run([python, "-c", _VERSIONS], capture_output=True, check=True).stdout
    installed: dict[str, str] = json.loads(output)
    return installed


def describe(plan: Plan) -> dict[str, str]:
    """Return the versions of the installed peers."""
    installed = versions(plan.peers)
    names = sorted({each for names in _IN_VENV.values() for each in names} & set(installed))
    result = {"peers": ", ".join(f"{name} {installed[name]}" for name in names)}
    if (path := nginx()) is not None:
        output = subprocess.run([path, "-v"], capture_output=True, text=True, check=False).stderr
        result["nginx"] = output.strip().rpartition("/")[2]
    return result


def write_contract(path: Path, users: int, upstream: Mapping[str, str] | None = None) -> Path:
    """Write the file for peers: the key, the users, and the upstream for proxies."""
    contract = {
        "keys": {hashlib.sha256(KEY.encode()).hexdigest(): "measured"},
        "users": {dataset.nickname(number): dataset.record(number) for number in range(users)},
        "upstream": upstream or {},
    }
    path.write_text(json.dumps(contract), encoding="utf-8")
    return path
