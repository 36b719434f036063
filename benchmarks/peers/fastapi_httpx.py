"""FastAPI on uvicorn as a proxy of an upstream directory, with httpx."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel

from benchmarks.peers.contract import NOT_FOUND, UPSTREAM
from benchmarks.peers.contract import PATH as IDENTIFY
from benchmarks.peers.fastapi import (
    ApiException,
    IdentifyRequest,
    User,
    on_api_exception,
    on_invalid_request,
    require_key,
)
from benchmarks.peers.on_uvicorn import serve

client = httpx.AsyncClient(
    base_url=UPSTREAM["url"],
    headers={"Authorization": f"Bearer {UPSTREAM['token']}"},
    limits=httpx.Limits(max_connections=64, max_keepalive_connections=64),
    timeout=2,
)


class Person(BaseModel):
    login: str
    card: str
    plan: str


@asynccontextmanager
async def connected(_app: FastAPI) -> AsyncIterator[None]:
    async with client:
        yield


app = FastAPI(
    lifespan=connected,
    exception_handlers={ApiException: on_api_exception, RequestValidationError: on_invalid_request},
)


@app.post(IDENTIFY, dependencies=[Depends(require_key)])
async def identify(request: IdentifyRequest) -> User:
    nickname = request.input[1:]
    response = await client.get(f"/people/{nickname}")
    if response.status_code == httpx.codes.NOT_FOUND:
        raise ApiException(404, NOT_FOUND)
    response.raise_for_status()
    person = Person.model_validate_json(response.content)
    if person.login != nickname:
        raise ValueError("upstream returned another user")
    return User(
        status="ok",
        plan=person.plan,
        card_number=person.card,
        nickname=request.input,
        profile_url=f"{UPSTREAM['site']}/m/{nickname}",
    )


if __name__ == "__main__":
    serve(app)
