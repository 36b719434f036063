"""FastAPI on uvicorn over PostgreSQL, with SQLAlchemy's asynchronous engine on asyncpg."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from sqlalchemy import column, select, table
from sqlalchemy.ext.asyncio import create_async_engine

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

DSN = UPSTREAM["dsn"].partition("?")[0].replace("postgresql:", "postgresql+asyncpg:")
engine = create_async_engine(DSN, pool_size=32, isolation_level="AUTOCOMMIT")
users = table("users", *map(column, ("plan", "card_number", "nickname", "profile_url")))


@asynccontextmanager
async def connected(_app: FastAPI) -> AsyncIterator[None]:
    yield
    await engine.dispose()


app = FastAPI(
    lifespan=connected,
    exception_handlers={ApiException: on_api_exception, RequestValidationError: on_invalid_request},
)


@app.post(IDENTIFY, dependencies=[Depends(require_key)])
async def identify(request: IdentifyRequest) -> User:
    nickname = request.input[1:]
    async with engine.connect() as connection:
        found = await connection.execute(select(users).where(users.c.nickname == nickname))
        row = found.one_or_none()
    if row is None:
        raise ApiException(404, NOT_FOUND)
    return User(
        status="ok",
        plan=row.plan,
        card_number=row.card_number,
        nickname=f"@{row.nickname}",
        profile_url=row.profile_url or f"{UPSTREAM['site']}/m/{nickname}",
    )


if __name__ == "__main__":
    serve(app)
