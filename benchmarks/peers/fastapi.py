"""FastAPI on uvicorn: models for request and response, the key as a dependency."""

from typing import Annotated

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, Field

from benchmarks.peers.contract import CHALLENGE, FORMAT, NOT_FOUND, PATH, TOKEN, USERS, is_token
from benchmarks.peers.on_uvicorn import serve

app = FastAPI()
bearer = HTTPBearer(auto_error=False)


class IdentifyRequest(BaseModel):
    input: Annotated[str, Field(pattern=r"^@[A-Za-z0-9_.-]{1,64}$")]


class User(BaseModel):
    status: str
    plan: str
    card_number: str
    nickname: str
    profile_url: str


class ApiException(Exception):
    def __init__(
        self, status: int, record: dict[str, str], headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(record["code"])
        self.response = JSONResponse(record, status, headers)


@app.exception_handler(ApiException)
async def on_api_exception(_request: Request, error: ApiException) -> JSONResponse:
    return error.response


@app.exception_handler(RequestValidationError)
async def on_invalid_request(_request: Request, _error: RequestValidationError) -> JSONResponse:
    return JSONResponse(FORMAT, 422)


async def require_key(
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)],
) -> None:
    if credentials is None or not is_token(credentials.credentials):
        raise ApiException(401, TOKEN, CHALLENGE)


@app.post(PATH, dependencies=[Depends(require_key)])
async def identify(request: IdentifyRequest) -> User:
    user = USERS.get(request.input[1:])
    if user is None:
        raise ApiException(404, NOT_FOUND)
    return User(**user)


if __name__ == "__main__":
    serve(app)
