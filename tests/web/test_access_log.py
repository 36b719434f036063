"""The log of answers: what a line says, and when lines are written."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any, Literal

import pytest

from support.fakes.clock_and_backends import LoopClock
from support.processes.process import eventually, running
from support.processes.service import CONFIG, USERS, Client, write_config
from tornado_idv.log_format import FormatLines, json_lines, text_lines
from tornado_idv.metrics.counters import Counters
from tornado_idv.model import ByCard, ByNickname
from tornado_idv.web import access_log
from tornado_idv.web.access_log import AccessLog, LoggedRequest, record_response
from tornado_idv.web.response import Result

TIMESTAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


class Written:
    """What was written, and how often."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.anything = asyncio.Event()

    def __call__(self, text: str) -> None:
        self.texts.append(text)
        self.anything.set()

    @property
    def lines(self) -> list[str]:
        return "".join(self.texts).splitlines()


UNAVAILABLE = {"code": "backend_unavailable", "backend": "crm", "reason": 'says "no",\n\x1b[31m'}


def note(
    log: AccessLog,
    status: int = 200,
    key_id: str | None = "caller",
    *,
    subject: str | None = None,
    **result: Any,
) -> None:
    request = LoggedRequest("a-1", None, "POST", "identify/url", "192.0.2.7", key_id, subject)
    record_response(Counters(), log, request, Result(status, b"{}", **result), 0.0123456)


def line_of(format_lines: FormatLines, status: int = 200, **fields: Any) -> str:
    """Return the line of a response."""
    log = AccessLog(written := Written(), format_lines)
    note(log, status, **fields)
    log.flush()
    (line,) = written.lines
    return line


async def test_a_line_for_machines_is_json() -> None:
    record = json.loads(line_of(json_lines, key_id=None))
    assert re.fullmatch(TIMESTAMP, record.pop("timestamp"))
    assert record == {
        "event": "request",
        "level": "info",
        "logger": "tornado_idv.access",
        "method": "POST",
        "route": "identify/url",
        "status": 200,
        "ms": 12.35,
        "client": "192.0.2.7",
        "key": None,
        "request_id": "a-1",
    }


async def test_a_line_for_people_is_plain() -> None:
    said = (
        "request method=POST route=identify/url status=200 ms=12.35 client=192.0.2.7 key=caller "
        "request_id=a-1"
    )
    assert re.fullmatch(rf"{TIMESTAMP} \[info     \] {said}", line_of(text_lines))


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({"code": "not_found"}, " code=not_found"),
        ({"code": "token", "reason": "expired"}, " code=token reason=expired"),
        (
            UNAVAILABLE,
            ' backend=crm code=backend_unavailable reason="says \\"no\\",\\n\\u001b[31m"',
        ),
    ],
    ids=["a code", "a reason", "a backend"],
)
async def test_the_line_of_a_failure_says_why(fields: dict[str, str], end: str) -> None:
    line = line_of(json_lines, 503, **fields)
    record = json.loads(line)
    known = ("code", "backend", "reason")
    assert {name: record[name] for name in known if name in record} == fields
    assert line.isprintable()
    assert line_of(text_lines, 503, **fields).endswith(f"request_id=a-1{end}")


@pytest.mark.parametrize(
    ("ids", "logged"), [("none", [None] * 3), ("full", ["@alice", "4000", None])]
)
async def test_subject_is_logged_in_full_only_if_configured(
    ids: Literal["none", "full"], logged: list[str | None]
) -> None:
    log = AccessLog(written := Written(), json_lines, ids)
    for query in (ByNickname("alice"), ByCard("4000"), None):
        note(log, subject=log.subject_of(query), cache="hit", backend="users")
    log.flush()
    records = [json.loads(line) for line in written.lines]
    assert [record.get("subject") for record in records] == logged
    assert (records[0]["cache"], records[0]["backend"]) == ("hit", "users")
    assert ("alice" in written.lines[0]) is (ids == "full")


def test_hashed_subject_is_the_same_for_the_same_user_of_one_service_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whose processes are forked from one that has imported the module."""
    alice = ByNickname("alice")
    this, same = (AccessLog(print, json_lines, "hash").subject_of for _ in range(2))
    hashed = [this(each) for each in (alice, ByNickname("Alice"), ByCard("4000"))]
    assert re.fullmatch("[0-9a-f]{16}", hashed[0] or "")
    assert hashed[0] == same(alice)
    monkeypatch.setattr(access_log, "_SECRET", b"of another service")
    assert len({*hashed, this(alice)}) == 4


async def test_lines_are_gathered_and_written_together() -> None:
    written, clock = Written(), LoopClock()
    log = AccessLog(written, json_lines)
    for status in (200, 401, 404):
        note(log, status)
    assert written.texts == []
    clock.forward(0.2)
    await asyncio.wait_for(written.anything.wait(), 5)
    assert len(written.texts) == 1
    assert [json.loads(line)["status"] for line in written.lines] == [200, 401, 404]
    written.anything.clear()
    note(log)
    clock.forward(0.2)
    await asyncio.wait_for(written.anything.wait(), 5)
    assert len(written.texts) == 2


async def test_too_many_lines_are_not_gathered() -> None:
    written = Written()
    log = AccessLog(written, text_lines)
    for _ in range(1001):
        note(log)
    assert len(written.lines) == 1000
    log.flush()
    assert len(written.lines) == 1001


async def test_the_time_is_that_of_the_answer_also_if_the_clock_goes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = Written()
    log = AccessLog(written, json_lines)
    for now in (1_800_000_000.0004, 1_800_000_000.0009, 1_800_000_001.5, 1_799_999_999.25):
        monkeypatch.setattr("time.time", lambda now=now: now)
        note(log)
    monkeypatch.undo()
    log.flush()
    assert [json.loads(line)["timestamp"] for line in written.lines] == [
        "2027-01-15T08:00:00.000Z",
        "2027-01-15T08:00:00.000Z",
        "2027-01-15T08:00:01.500Z",
        "2027-01-15T07:59:59.250Z",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "logged"), [("true", [200, 405]), ("false", [405])])
def test_successful_health_checks_are_logged_if_configured(
    tmp_path: Path, setting: str, logged: list[int]
) -> None:
    """Probes of a load balancer would be most of the log."""
    server = "port: 0, base_path: /x, health_path: /health.z,"
    config = CONFIG.replace("port: 0,", server) + USERS
    config += f"logging: {{format: json, health_checks: {setting}}}\n"
    with running(write_config(tmp_path, config)) as service:
        client = Client(service.port)
        reply = client.send("GET", "/health.z", {"Host": "x"})
        assert (reply.status, reply.body) == (200, b'{"status":"ok"}')
        assert reply.headers["content-type"] == "application/json"
        assert "etag" not in reply.headers
        url = "/x/api/v1/identify/url"
        for method, path, allowed in (("PATCH", "/health.z", "GET, HEAD"), ("ALICE", url, "POST")):
            wrong = client.send(method, path, {"Host": "x"})
            assert (wrong.status, wrong.headers["allow"]) == (405, allowed)
        assert client.send("GET", "/health-z", {"Host": "x"}).status == 404
        eventually(lambda: '"route":"identify/url"' in service.read_log())
        lines = [json.loads(line) for line in service.read_log().splitlines()]
    assert {each["method"] for each in lines if each.get("status") == 405} == {"PATCH", "other"}
    assert [line["status"] for line in lines if line.get("route") == "health"] == logged
