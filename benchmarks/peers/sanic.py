"""Sanic on its own server, in one process."""

from __future__ import annotations

import orjson
from sanic import HTTPResponse, Request, Sanic, json
from sanic.exceptions import BadRequest

from benchmarks.peers.contract import CHALLENGE, FORMAT, PATH, PORT, TOKEN, find, is_key

app = Sanic("peer", dumps=orjson.dumps, loads=orjson.loads)


@app.post(PATH)
async def identify(request: Request) -> HTTPResponse:
    if not is_key(request.headers.get("Authorization", "")):
        return json(TOKEN, 401, CHALLENGE)
    try:
        document = request.json
    except BadRequest:
        return json(FORMAT, 422)
    status, record = find(document)
    return json(record, status)


if __name__ == "__main__":
    app.run("127.0.0.1", PORT, single_process=True, access_log=False, motd=False)
