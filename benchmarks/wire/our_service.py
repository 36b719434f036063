"""The command line of this service with one backend."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import dataset
from benchmarks.plan import Plan
from benchmarks.wire.traffic import KEY

_CONFIG = """\
profile_sites: [{site}]
server: {{port: {port}, workers: {workers}, fast_path: {fast_path}, request_timeout: 10s}}
auth: {{{store}keys: [{{id: measured, sha256: {digest}}}]}}
{more}
{shared_cache}
limits: {limits}
backends: [{backend}]
"""
_UNCACHED = "cache: {ttl: 0s, negative_ttl: 0s, stale_if_error: 0s}"


@dataclass(frozen=True, slots=True)
class OurService:
    """Writes a ``config.yaml``, and returns the command line to serve it on a port.

    The access log is enabled, as by default.
    """

    folder: Path
    backend: str
    fast_path: bool = True
    uncached: bool = False
    cache: str = ""
    limits: str = "{}"
    workers: int = 1
    shared_cache: str = ""
    store: Path | None = None
    """A store with further keys."""

    def __call__(self, port: int) -> Sequence[str]:
        config = self.folder / f"config-{port}.yaml"
        text = _CONFIG.format(
            site=dataset.SITE,
            port=port,
            workers=self.workers,
            fast_path="on" if self.fast_path else "off",
            digest=hashlib.sha256(KEY.encode()).hexdigest(),
            more=_UNCACHED if self.uncached else self.cache,
            shared_cache=self.shared_cache,
            limits=self.limits,
            backend=self.backend,
            store=f'store: "{self.store}", ' if self.store else "",
        )
        config.write_text(text, encoding="utf-8")
        return [sys.executable, "-m", "tornado_idv", "serve", "--config", str(config)]


@dataclass(frozen=True, slots=True)
class OnTornadoServer:
    """The same with Tornado's `HTTPServer`."""

    our_service: OurService

    def __call__(self, port: int) -> Sequence[str]:
        *_, config = self.our_service(port)
        return [sys.executable, "-m", "benchmarks.peers.tornado", str(port), config]


def over_yaml(plan: Plan) -> str:
    """Return the entry of a backend over a fixture with the plan's users."""
    fixture = plan.folder / "users.yaml"
    if not fixture.exists():
        dataset.write_fixture(fixture, plan.keys)
    return f'{{name: measured, kind: yaml, path: "{fixture}"}}'


def over_sqlite(plan: Plan, users: int) -> str:
    """Return the entry of a backend over a SQLite table with this many users."""
    return f'{{name: measured, kind: sqlite, path: "{dataset.table(plan, users)}"}}'


def over_upstream(port: int) -> str:
    """Return the entry of a backend over another instance of this service."""
    return _upstream(port, KEY)


def over_directory(port: int, token: str) -> str:
    """Return the entry of an upstream with users at ``/people/NICKNAME``."""
    request = "by_nickname: {url: '/people/{nickname}'}"
    response = "response: {plan: plan, card_number: card, nickname: login}"
    return _upstream(port, token, request, response)


def _upstream(port: int, token: str, *more: str) -> str:
    members = [
        "name: measured",
        "kind: upstream",
        "timeout: 9s",  # long enough for a busy machine
        f"base_url: 'http://127.0.0.1:{port}'",
        f"auth: {{kind: bearer, token: {token}}}",
        *more,
    ]
    return f"{{{', '.join(members)}}}"
