"""The sides: this service as it ships, and its peers, over the same users and the same key."""

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

from benchmarks import people
from benchmarks.plan import Plan
from benchmarks.wire import agreement
from benchmarks.wire.ourselves import OnTornado, Ourselves, over_yaml
from benchmarks.wire.server import Command, Server, running
from benchmarks.wire.traffic import KEY

OURS = "this service"
WITHOUT_PACKETS = "this service, packet cache off"
TORNADO = "our handlers on tornado's HTTPServer"
FASTAPI = "FastAPI on uvicorn"
AIOHTTP = "aiohttp"
STARLETTE = "Starlette on uvicorn"
FASTAPI_HTTPX = "FastAPI with httpx"
AIOHTTP_BOTH = "aiohttp with its own client"
ASGI = "a raw ASGI function on uvicorn"
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
}
"""The peers of the virtual environment: the module that serves, and what is imported there."""

PROXIES = (FASTAPI_HTTPX, AIOHTTP_BOTH)
_NO_PACKAGES = {"asgi", "fastapi_httpx", "aiohttp_proxy"}

_VERSIONS = """\
from importlib.metadata import distributions
import json
print(json.dumps({each.name.lower(): each.version for each in distributions()}))
"""


@dataclass(frozen=True, slots=True)
class Side:
    """A server that can be started, and what is asked of it before it is measured."""

    command: Command
    check: Callable[[Server, int], None] = agreement.check


@dataclass(frozen=True, slots=True)
class _Peer:
    """A module of `benchmarks.peers`; called with a port, it is a command line."""

    python: str
    module: str
    contract: Path

    def __call__(self, port: int) -> Sequence[str]:
        module = f"benchmarks.peers.{self.module}"
        return [self.python, "-m", module, str(port), str(self.contract)]


def ours(plan: Plan) -> dict[str, Side]:
    """This service as it ships, over a fixture, with the packet cache and without."""
    return {
        OURS: Side(Ourselves(plan.folder, over_yaml(plan))),
        WITHOUT_PACKETS: Side(Ourselves(plan.folder, over_yaml(plan), packet_cache=False)),
    }


def every(plan: Plan) -> dict[str, Side]:
    """Ours, and each peer that is here; the others are left out, with the reason."""
    sides = ours(plan)
    sides[TORNADO] = Side(OnTornado(Ourselves(plan.folder, over_yaml(plan))))
    contract = write_contract(plan.folder / "contract.json", plan.keys)
    sides |= peers(plan, contract, [name for name in _IN_VENV if name not in PROXIES])
    if nginx() is None:
        plan.left_out[NGINX] = "nginx is not installed; on Debian: apt-get install nginx-light"
    else:
        peer = _Peer(sys.executable, "nginx", contract)
        sides[NGINX] = Side(peer, agreement.check_constant)
    return sides


def peers(plan: Plan, contract: Path, names: Iterable[str]) -> dict[str, Side]:
    """Those of the virtual environment, as far as they are there."""
    sides, there = {}, versions(plan.peers)
    for name in names:
        module, *needs = _IN_VENV[name]
        absent = {module, *needs} - _NO_PACKAGES - set(there)
        if absent:
            what = ", ".join(sorted(absent))
            plan.left_out[name] = f"{plan.peers} has no {what}; make bench installs it"
        else:
            sides[name] = Side(_Peer(str(plan.peers), module, contract))
    return sides


def running_side(plan: Plan, name: str, side: Side) -> AbstractAsyncContextManager[Server]:
    """One side as a server, which logs into a file of its own."""
    return running(name, side.command, plan.folder / f"{re.sub('[^a-z]+', '-', name.lower())}.log")


@asynccontextmanager
async def started(plan: Plan, sides: Mapping[str, Side]) -> AsyncIterator[dict[str, Server]]:
    """All sides as servers that were seen to keep the contract."""
    async with AsyncExitStack() as stack:
        servers = {}
        with plan.step("servers", len(sides)) as advance:
            for name, side in sides.items():
                servers[name] = await stack.enter_async_context(running_side(plan, name, side))
                side.check(servers[name], plan.keys)
                advance()
        yield servers


def nginx() -> str | None:
    """Where nginx is; Debian puts it where only root looks."""
    return shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")


def versions(python: Path) -> dict[str, str]:
    """What is installed beside this interpreter; nothing, if there is none."""
    if not python.exists():
        return {}
    told = subprocess.run([python, "-c", _VERSIONS], capture_output=True, check=True).stdout
    every_version: dict[str, str] = json.loads(told)
    return every_version


def described(plan: Plan) -> dict[str, str]:
    """The versions of what is measured beside ours, as far as it is here."""
    there = versions(plan.peers)
    names = sorted({each for names in _IN_VENV.values() for each in names} & set(there))
    told = {"peers": ", ".join(f"{name} {there[name]}" for name in names)}
    if (path := nginx()) is not None:
        output = subprocess.run([path, "-v"], capture_output=True, text=True, check=False).stderr
        told["nginx"] = output.strip().rpartition("/")[2]
    return told


def write_contract(path: Path, users: int, upstream: Mapping[str, str] | None = None) -> Path:
    """What a peer is told: the key, so many users, and the directory that it stands in front of."""
    told = {
        "keys": {hashlib.sha256(KEY.encode()).hexdigest(): "measured"},
        "users": {people.nickname(number): people.record(number) for number in range(users)},
        "upstream": upstream or {},
    }
    path.write_text(json.dumps(told), encoding="utf-8")
    return path
