"""Backends over upstreams with scripted responses, and a user in them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from idv_upstream.backend import UpstreamBackend
from idv_upstream.response.mapping import ResponseMapper
from idv_upstream.response.options import ResponseOptions
from support.http.scripted_server import Said, Scripted, serving
from tornado_idv import ByCard, ByNickname, User
from tornado_idv.interfaces.backend import AnyBackend
from tornado_idv.kit.testing import make_backend
from tornado_idv.registry import opened_backend

PLAIN = {"plan": "plan", "card_number": "card", "nickname": "login"}
RECORD = {"plan": "Free", "card": "0012", "login": "alice", "id": 7}
"""What becomes `ALICE` by `PLAIN`."""
ALICE = User("Free", "0012", "alice")
QUERIES = (ByNickname("alice"), ByCard("0012"))


def mapper(**options: Any) -> ResponseMapper:
    return ResponseMapper(ResponseOptions.model_validate({**PLAIN, **options}))


def record(**members: Any) -> dict[str, Any]:
    return {**RECORD, **members}


@asynccontextmanager
async def upstream(
    *answers: bytes | Said, **options: Any
) -> AsyncIterator[tuple[Scripted, AnyBackend]]:
    """Serve these responses, and open a backend for them."""
    async with serving(*answers) as server:
        given = {"base_url": server.address, "timeout": "5s", **options}
        async with opened_backend(make_backend(UpstreamBackend, Path(), **given)) as backend:
            yield server, backend
