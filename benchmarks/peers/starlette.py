"""Starlette on uvicorn."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from benchmarks.peers.contract import CHALLENGE, FORMAT, PATH, TOKEN, find, is_key
from benchmarks.peers.on_uvicorn import serve


class OrjsonResponse(JSONResponse):
    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)


async def identify(request: Request) -> OrjsonResponse:
    if not is_key(request.headers.get("Authorization", "")):
        return OrjsonResponse(TOKEN, 401, CHALLENGE)
    try:
        document = orjson.loads(await request.body())
    except orjson.JSONDecodeError:
        return OrjsonResponse(FORMAT, 422)
    status, record = find(document)
    return OrjsonResponse(record, status)


app = Starlette(routes=[Route(PATH, identify, methods=["POST"])])

if __name__ == "__main__":
    serve(app)
