"""CPU time of the server for a cached lookup, with clients from practice.

A proxy adds an id and an address to each request. A traced client adds a trace id. Many clients
send head and body in two segments. For comparison, a raw ASGI function on uvicorn gets the same
requests from the same client. Clients and proxies run on the core of the load generator.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.figures import Figure, Target, microseconds, ratio
from benchmarks.plan import Plan
from benchmarks.rounds import interleave
from benchmarks.wire import contenders, traffic, wrk
from benchmarks.wire.contenders import Contender
from benchmarks.wire.our_service import OurService, over_yaml
from benchmarks.wire.process import ROOT, Server, run_server
from benchmarks.wire.traffic import KEY, Mix, Traffic

_CLIENTS = {
    "aiohttp, 8 connections": ("aiohttp", 0.5),
    "aiohttp with OpenTelemetry": ("aiohttp-opentelemetry", 0.5),
    "http.client, one connection": ("http.client", 0.8),
    "requests, one connection": ("requests", 0.8),
    "httpx, one connection": ("httpx", 0.8),
    "httpx with OpenTelemetry": ("httpx-opentelemetry", 0.8),
}
"""Clients of `benchmarks.peers.clients`, and the target ratio."""
_NGINX = """\
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream service {{ server 127.0.0.1:{server}; {keep} }}
    server {{
        listen 127.0.0.1:{port} backlog=1024;
        location / {{
            proxy_pass http://service;
            {fields}
        }}
    }}
}}
"""
_NGINX_KEEP_ALIVE = (
    "keepalive 32; keepalive_requests 1000000000;",
    """proxy_http_version 1.1; proxy_set_header Connection "";
            proxy_set_header X-Forwarded-For $remote_addr;
            proxy_set_header X-Request-ID $request_id;""",
)
_HAPROXY = """\
global
    maxconn 4096
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend clients
    bind 127.0.0.1:{port}
    option forwardfor
    unique-id-format %{{+X}}o%ci%cp%rt%pid
    unique-id-header X-Request-ID
    default_backend service
backend service
    http-reuse always
    server service 127.0.0.1:{server}
"""

Measure = Callable[[Plan, Server], Awaitable[float]]
"""Runs a client for a round. Returns the CPU seconds of the server per request."""


async def real_clients(plan: Plan) -> list[Figure]:
    """Measure this service and the ASGI function with each installed client."""
    # With this TTL, no answer expires or is refreshed during the run.
    service = OurService(plan.folder, over_yaml(plan), cache="cache: {ttl: 24h}")
    sides = {contenders.OURS: Contender(service)}
    contract = contenders.write_contract(plan.folder / "contract.json", plan.keys)
    sides |= contenders.peers(plan, contract, [contenders.ASGI])
    if len(sides) == 1:
        return []
    figures: list[Figure] = []
    async with contenders.run_all(plan, sides) as servers:
        for name, (measure, most) in _available(plan).items():
            runs = {each: partial(measure, plan, server) for each, server in servers.items()}
            used = await interleave(plan, name, runs)
            ours, theirs = used[contenders.OURS], used[contenders.ASGI]
            figures += [
                replace(microseconds(f"CPU, {each}", used[each]), of=name) for each in servers
            ]
            what = f"CPU of ours / raw ASGI, {name}"
            figures.append(ratio(what, ours, theirs, Target("most", most)))
    return figures


def _available(plan: Plan) -> dict[str, tuple[Measure, float]]:
    """Return each installed client, and its target ratio."""
    measures: dict[str, tuple[Measure, float]] = {}
    if not plan.skip("clients behind proxies", wrk.missing()):
        measures |= {
            "wrk, the same bytes again": (_wrk(traffic.uniform), 0.3),
            "wrk, varying fields": (_wrk(traffic.varying), 0.5),
            "wrk, 60 kinds of client": (_wrk(traffic.sixty_kinds), 0.5),
            "wrk, a connection each": (_wrk(_closing), 1.0),
        }
        if contenders.nginx() is None:
            plan.skipped["clients behind nginx"] = "nginx is not installed"
        else:
            measures["behind nginx"] = _behind(_nginx, _NGINX_KEEP_ALIVE), 0.5
            measures["behind nginx with its defaults"] = _behind(_nginx, ("", "")), 0.8
        if shutil.which("haproxy", path="/usr/sbin:/usr/bin:/usr/local/bin") is None:
            plan.skipped["clients behind haproxy"] = "haproxy is not installed"
        else:
            measures["behind haproxy"] = _behind(_haproxy), 0.5
    installed = contenders.versions(plan.peers)
    for name, (client, most) in _CLIENTS.items():
        package = client.partition("-")[0]
        if package in installed or package == "http.client":
            measures[name] = (
                _program(str(plan.peers), "-m", "benchmarks.peers.clients", client),
                most,
            )
        else:
            plan.skipped[name] = f"{plan.peers} has no {package}; make bench installs it"
    if shutil.which("node") is None:
        plan.skipped["Node's fetch"] = "node is not installed"
    else:
        measures["Node's fetch, 8 connections"] = (
            _program("node", str(ROOT / "benchmarks" / "peers" / "fetch.mjs")),
            0.8,
        )
    return measures


def _wrk(mix: Mix) -> Measure:
    async def measure(plan: Plan, server: Server) -> float:
        return (await wrk.load(plan, server, mix)).cpu

    return measure


def _closing(users: int, seconds: float) -> Traffic:
    return traffic.with_fields(traffic.uniform(users, seconds), "Connection: close\r\n")


def _behind(proxy: Callable[..., Sequence[str]], *arguments: object) -> Measure:
    async def measure(plan: Plan, server: Server) -> float:
        def command(port: int) -> Sequence[str]:
            proxied = proxy(plan.folder, port, server.port, *arguments)
            return ["taskset", "-c", str(plan.load_core), *proxied]

        async with run_server("the proxy", command, plan.folder / "proxy.log") as running:
            before = server.cpu()
            load = await wrk.load(plan, running, traffic.uniform)
            return (server.cpu() - before) / load.requests

    return measure


def _nginx(folder: Path, port: int, server: int, options: tuple[str, str]) -> Sequence[str]:
    keep, fields = options
    config = folder / "nginx.conf"
    config.write_text(
        _NGINX.format(folder=folder, port=port, server=server, keep=keep, fields=fields),
        encoding="utf-8",
    )
    return [contenders.nginx() or "nginx", "-p", str(folder), "-c", str(config), "-e", "stderr"]


def _haproxy(folder: Path, port: int, server: int) -> Sequence[str]:
    config = folder / "haproxy.cfg"
    config.write_text(_HAPROXY.format(port=port, server=server), encoding="utf-8")
    path = shutil.which("haproxy", path="/usr/sbin:/usr/bin:/usr/local/bin") or "haproxy"
    return [path, "-db", "-f", str(config)]


def _program(*command: str) -> Measure:
    async def measure(plan: Plan, server: Server) -> float:
        before = server.cpu()
        process = await asyncio.create_subprocess_exec(
            *("taskset", "-c", str(plan.load_core), *command),
            *(str(server.port), str(plan.seconds), str(plan.keys), KEY),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
        if process.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} failed on {server.name}")
        return (server.cpu() - before) / int(output)

    return measure
