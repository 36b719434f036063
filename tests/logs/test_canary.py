"""A key, a card number and a nickname sent in every way of the contract are written nowhere."""

import hashlib
import re
from pathlib import Path

import pytest

from support.databases.key_stores import make_store, read
from support.http.contract_values import TABLE
from support.http.raw_requests import STALLED_CHUNKS
from support.http.repeated_requests import BODY, PATH
from support.processes.admin import WITH_ADMIN, ask_admin
from support.processes.process import running
from support.processes.service import EXPIRED_KEY, FIXTURE, KEY, Client, write_config
from tornado_idv.web.errors import ApiError

CANARIES = {b"alice": b"zqxjk", b"Alice": b"Zqxjk", b"ALICE": b"ZQXJK", b"40001234": b"80081358"}
"""What stands for the user of the contract's requests; of the same length, as these announce it."""
LINE = b"POST /api/v1/identify/url HTTP/1.1\r\nHost: x\r\n"
AUTH = b"Authorization: Bearer " + KEY.encode()
ODD = [
    LINE + AUTH + b"\0\r\n\r\n",
    LINE + b"X: y\r\n " + AUTH + b"\r\n\r\n",
    LINE + AUTH.replace(b":", b"") + b"\r\n\r\n",
    LINE + KEY.encode() + b" : x\r\n\r\n",
    LINE + AUTH.replace(b"Bearer", b"Zqxjk") + b"\r\n\r\n",
    LINE + b"Content-Length: zqxjk\r\n\r\n",
    LINE + b"X-Forwarded-For: zqxjk, ::1%zqxjk\r\n\r\n",
    LINE + b"Expect: zqxjk\r\n\r\n",
    *(
        LINE + AUTH + b"\r\n%b: zqxjk/zqxjk\r\n\r\n" % name
        for name in (b"Transfer-Encoding", b"Content-Type", b"Content-Encoding", b"Accept")
    ),
    LINE + AUTH + b"\r\nTransfer-Encoding: chunked\r\n\r\nzqxjk\r\n\r\n",
    LINE.replace(b"x", b"zqxjk/x") + b"\r\n",
    b"zqxjk\r\n\r\n",
    b"GET / zqxjk/1.1\r\n\r\n",
    b"GET zqxjk HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /zqxjk\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /?%zz=%zqxjk&;=%ff HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /zqxjk?key=" + KEY.encode() + b"&card=80081358 HTTP/1.1\r\nHost: zqxjk\r\n\r\n",
    b"ZQXJK /api/v1/identify/url HTTP/1.1\r\nHost: x\r\nCookie: zqxjk\r\n\r\n",
    b"80081358 / HTTP/1.1\r\nHost: x\r\n\r\n",
]
"""Requests with a secret where none belongs."""
SECRETS = ("zqxjk", "80081358", "alic", "40001234", KEY.split("_")[2], EXPIRED_KEY.split("_")[2])
UNKNOWN_KEY = "A" * 40
DIGEST = hashlib.sha256(KEY.encode()).hexdigest()


def with_canaries(data: bytes) -> bytes:
    for name, canary in CANARIES.items():
        data = data.replace(name, canary)
    return data


@pytest.mark.slow
def test_nothing_that_was_sent_is_logged_stored_or_shown_to_an_operator(tmp_path: Path) -> None:
    (tmp_path / "users.yaml").write_bytes(with_canaries(FIXTURE.encode()))
    store = tmp_path / "keys.db"
    stored_key = make_store(store, "stored")["stored"]
    config = WITH_ADMIN.replace("auth:\n", "auth:\n  store: keys.db\n")
    config = config.replace("port: 0,", "port: 0, trusted_proxies: [127.0.0.1],", 1)
    config += "logging: {level: debug, format: json, ids: hash}\n"
    statuses, lookups = [], 0
    with running(write_config(tmp_path, config)) as service:
        client = Client(service.port)
        for data in map(with_canaries, [*TABLE.values(), *ODD, STALLED_CHUNKS]):
            (reply,) = client.raw(data)
            statuses.append(reply.status)
            lookups += reply.status == 200 or reply.code == "not_found"
            assert reply.status == 200 or reply.body in {error.body for error in ApiError}
        stored = {"Authorization": f"Bearer {stored_key}", "X-Forwarded-For": "203.0.113.5"}
        assert client.post(PATH, with_canaries(BODY), stored).status == 200
        paths = ("/metrics", "/status.json", "/health/ready?verbose")
        shown = b"".join(ask_admin(service, path).body for path in paths)
        service.stop()
        log = service.read_log()
    assert read(store)["stored"].last_used is not None
    written = shown + b"".join(each.read_bytes() for each in tmp_path.glob("keys.db*"))
    secrets = (*SECRETS, KEY, stored_key.split("_")[2], UNKNOWN_KEY, DIGEST)
    assert [text for text in secrets if text.lower().encode() in written.lower()] == []
    assert {200, 400, 401, 404, 408, 413, 414, 417, 422, 431} <= {*statuses}
    assert [text for text in secrets if text.lower() in log.lower()] == []
    assert log.count("request_id") == len(statuses) + 1
    assert len(re.findall(r'"subject":"[0-9a-f]{16}"', log)) == lookups + 1
    assert log.count('"client":"203.0.113.5"') == 1
