"""aiohttp's server as a proxy of an upstream directory, with aiohttp's client."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import orjson
from aiohttp import web

from benchmarks.peers.aiohttp import respond, serve
from benchmarks.peers.contract import (
    CHALLENGE,
    FORMAT,
    NICKNAME,
    NOT_FOUND,
    PATH,
    TOKEN,
    UPSTREAM,
    is_key,
)

SESSION = web.AppKey("session", aiohttp.ClientSession)


async def connected(app: web.Application) -> AsyncIterator[None]:
    headers = {"Authorization": f"Bearer {UPSTREAM['token']}"}
    async with aiohttp.ClientSession(UPSTREAM["url"], headers=headers) as session:
        app[SESSION] = session
        yield


async def identify(request: web.Request) -> web.Response:
    if not is_key(request.headers.get("Authorization", "")):
        return respond(TOKEN, 401, CHALLENGE)
    try:
        text = orjson.loads(await request.read())["input"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return respond(FORMAT, 422)
    if not isinstance(text, str) or not NICKNAME.fullmatch(text):
        return respond(FORMAT, 422)
    return await find(request.app[SESSION], text[1:])


async def find(session: aiohttp.ClientSession, nickname: str) -> web.Response:
    async with session.get(f"/people/{nickname}") as response:
        if response.status == web.HTTPNotFound.status_code:
            return respond(NOT_FOUND, 404)
        response.raise_for_status()
        person = orjson.loads(await response.read())
    if person["login"] != nickname:
        raise ValueError("upstream returned another user")
    return respond(
        {
            "status": "ok",
            "plan": person["plan"],
            "card_number": person["card"],
            "nickname": f"@{nickname}",
            "profile_url": f"{UPSTREAM['site']}/m/{nickname}",
        },
        200,
    )


app = web.Application()
app.router.add_post(PATH, identify)
app.cleanup_ctx.append(connected)

if __name__ == "__main__":
    serve(app)
