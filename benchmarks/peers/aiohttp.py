"""aiohttp's own server, with its C parser, on uvloop."""

from __future__ import annotations

import orjson
import uvloop
from aiohttp import web

from benchmarks.peers.contract import CHALLENGE, FORMAT, PATH, PORT, TOKEN, find, is_key


async def identify(request: web.Request) -> web.Response:
    if not is_key(request.headers.get("Authorization", "")):
        return respond(TOKEN, 401, CHALLENGE)
    try:
        document = orjson.loads(await request.read())
    except orjson.JSONDecodeError:
        return respond(FORMAT, 422)
    status, record = find(document)
    return respond(record, status)


def respond(
    record: dict[str, str], status: int, headers: dict[str, str] | None = None
) -> web.Response:
    return web.Response(
        body=orjson.dumps(record), status=status, headers=headers, content_type="application/json"
    )


def serve(app: web.Application) -> None:
    web.run_app(
        app,
        host="127.0.0.1",
        port=PORT,
        access_log=None,
        print=None,
        loop=uvloop.new_event_loop(),
    )


app = web.Application()
app.router.add_post(PATH, identify)

if __name__ == "__main__":
    serve(app)
