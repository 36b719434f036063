"""BlackSheep on uvicorn."""

from __future__ import annotations

import orjson
from blacksheep import Application, Content, Request, Response

from benchmarks.peers.contract import FORMAT, PATH, TOKEN, find, is_key
from benchmarks.peers.on_uvicorn import serve

app = Application()


@app.router.post(PATH)
async def identify(request: Request) -> Response:
    authorization = request.get_first_header(b"authorization") or b""
    if not is_key(authorization.decode("latin-1")):
        response = respond(TOKEN, 401)
        response.add_header(b"WWW-Authenticate", b"Bearer")
        return response
    try:
        document = orjson.loads(await request.read() or b"")
    except orjson.JSONDecodeError:
        return respond(FORMAT, 422)
    status, record = find(document)
    return respond(record, status)


def respond(record: dict[str, str], status: int) -> Response:
    return Response(status, None, Content(b"application/json", orjson.dumps(record)))


if __name__ == "__main__":
    serve(app)
