"""FastAPI on uvicorn: models for the question and the answer, the key as a dependency."""

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


class Question(BaseModel):
    input: Annotated[str, Field(pattern=r"^@[A-Za-z0-9_.-]{1,64}$")]


class User(BaseModel):
    status: str
    plan: str
    card_number: str
    nickname: str
    profile_url: str


class Refused(Exception):
    def __init__(
        self, status: int, record: dict[str, str], headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(record["code"])
        self.answer = JSONResponse(record, status, headers)


@app.exception_handler(Refused)
async def refused(_request: Request, error: Refused) -> JSONResponse:
    return error.answer


@app.exception_handler(RequestValidationError)
async def invalid(_request: Request, _error: RequestValidationError) -> JSONResponse:
    return JSONResponse(FORMAT, 422)


async def require_key(
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)],
) -> None:
    if credentials is None or not is_token(credentials.credentials):
        raise Refused(401, TOKEN, CHALLENGE)


@app.post(PATH, dependencies=[Depends(require_key)])
async def identify(question: Question) -> User:
    user = USERS.get(question.input[1:])
    if user is None:
        raise Refused(404, NOT_FOUND)
    return User(**user)


if __name__ == "__main__":
    serve(app)
