"""This service as it ships, over one backend, as a command line."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import people
from benchmarks.plan import Plan
from benchmarks.wire.traffic import KEY

_CONFIG = """\
profile_sites: [{site}]
server: {{port: {port}, packet_cache: {packet_cache}, request_timeout: 10s}}
auth: {{keys: [{{id: measured, sha256: {digest}}}]}}
{more}
backends: [{backend}]
"""
_UNCACHED = "cache: {ttl: 0s, negative_ttl: 0s}"


@dataclass(frozen=True, slots=True)
class Ourselves:
    """A ``config.yaml`` and what serves it; called with a port, it is a command line.

    The access log is on standard error, as always, and so in the server's file.
    """

    folder: Path
    backend: str
    packet_cache: bool = True
    uncached: bool = False

    def __call__(self, port: int) -> Sequence[str]:
        config = self.folder / f"config-{port}.yaml"
        text = _CONFIG.format(
            site=people.SITE,
            port=port,
            packet_cache="on" if self.packet_cache else "off",
            digest=hashlib.sha256(KEY.encode()).hexdigest(),
            more=_UNCACHED if self.uncached else "",
            backend=self.backend,
        )
        config.write_text(text, encoding="utf-8")
        return [sys.executable, "-m", "tornado_idv", "serve", "--config", str(config)]


@dataclass(frozen=True, slots=True)
class OnTornado:
    """The same with Tornado's own transport."""

    ourselves: Ourselves

    def __call__(self, port: int) -> Sequence[str]:
        *_, config = self.ourselves(port)
        return [sys.executable, "-m", "benchmarks.peers.tornado", str(port), config]


def over_yaml(plan: Plan) -> str:
    """A fixture with the plan's users, as a backend."""
    fixture = plan.folder / "users.yaml"
    if not fixture.exists():
        people.write_fixture(fixture, plan.keys)
    return f'{{name: measured, kind: yaml, path: "{fixture}"}}'


def over_sqlite(plan: Plan, users: int) -> str:
    """A SQLite table of so many users, as a backend."""
    return f'{{name: measured, kind: sqlite, path: "{people.table(plan, users)}"}}'


def over_upstream(port: int) -> str:
    """Another instance of this service, as a backend."""
    return _upstream(port, KEY)


def over_directory(port: int, token: str) -> str:
    """A directory that is asked for ``/people/NICKNAME``, as a backend."""
    request = "by_nickname: {url: '/people/{nickname}'}"
    response = "response: {plan: plan, card_number: card, nickname: login}"
    return _upstream(port, token, request, response)


def _upstream(port: int, token: str, *more: str) -> str:
    members = [
        "name: measured",
        "kind: upstream",
        "timeout: 9s",  # a busy machine is slow, and no failure
        f"base_url: 'http://127.0.0.1:{port}'",
        f"auth: {{kind: bearer, token: {token}}}",
        *more,
    ]
    return f"{{{', '.join(members)}}}"
