"""The test double: faults of a fixture, users and faults set at run time, and the journal."""

import json
import re
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from support.processes.admin import WITH_ADMIN, AdminReply, ask_admin
from support.processes.process import eventually
from support.processes.service import KEY, Client, Reply, lookup_request, serving
from tornado_idv.double.fault import Fault
from tornado_idv.features.double.admin import ROUTES
from tornado_idv.features.double.state import Double as DoubleState
from tornado_idv.log_format import json_lines
from tornado_idv.metrics.counters import Counters
from tornado_idv.service.service import Service
from tornado_idv.web.access_log import AccessLog, Ids, LoggedRequest, record_response
from tornado_idv.web.response import Result

USER = {"plan": "Free", "card_number": "1"}
DEMO = "demo: true\n" + WITH_ADMIN.replace("port: 0,", "port: 0, verify: true,", 1)
USERS = """\
users:
  - {nickname: "@alice", card_number: "4000123412341234", plan: Free}
  - {nickname: "@down", fault: {status: "503"}}
  - {nickname: "@broken", fault: {status: 500}}
  - {nickname: "@busy", fault: {status: 429}}
  - {nickname: "@slow", card_number: "21", plan: Free, fault: {delay: 1ms}}
  - {nickname: "@drip", card_number: "22", plan: Free, fault: {drip: 1MiB/s}}
  - {nickname: "@trickle", card_number: "23", plan: Free, fault: {drip: 2KiB/s}}
  - {nickname: "@twice", card_number: "24", plan: Free, fault: {status: 503, times: 2}}
  - {card_number: "25", fault: {status: 503}}
  - {nickname: "@page", fault: {proxy_status: 404}}
  - {nickname: "@reset", fault: {reset: true}}
  - {nickname: "@cut", card_number: "26", plan: Free, fault: {cut: true}}
"""


class Double:
    """A double, the client of its API and that of its admin listener."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.client = Client(service.port)

    def put(self, path: str, **record: object) -> AdminReply:
        return ask_admin(self.service, path, record, method="PUT")

    def delete(self, path: str) -> AdminReply:
        return ask_admin(self.service, path, method="DELETE")

    def get(self, path: str) -> Any:
        return ask_admin(self.service, path).json

    def statuses(self, text: str, times: int = 1) -> list[int]:
        ask = self.client.by_card if text.isdigit() else self.client.by_input
        return [ask(text).status for _ in range(times)]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("double")
    (folder / "users.yaml").write_text(USERS, encoding="utf-8")
    with serving(DEMO, folder) as running:
        yield running


@pytest.fixture
def double(service: Service) -> Double:
    double = Double(service)
    double.delete("/double")
    return double


@pytest.mark.parametrize(
    ("text", "status", "code"),
    [
        ("@alice", 200, None),
        ("@down", 503, "backend_unavailable"),
        ("@broken", 500, "internal"),
        ("@busy", 429, "rate_limited"),
        ("@slow", 200, None),
        ("@drip", 200, None),
        ("@trickle", 200, None),
        ("@nobody", 404, "not_found"),
    ],
)
def test_a_fault_gives_the_response_of_the_service(
    double: Double, text: str, status: int, code: str | None
) -> None:
    reply = double.client.by_input(text)
    assert (reply.status, reply.code) == (status, code)
    assert reply.headers["x-request-id"]
    assert ("retry-after" in reply.headers) == (status in (429, 503))
    if status == 200:
        assert json.loads(reply.body)["nickname"] == text
        assert reply.headers["content-type"] == "application/json"


def test_batch_in_pieces_takes_the_time_of_its_rate(double: Double) -> None:
    began = time.monotonic()
    body = b'{"items": [{"input": "@trickle"}, {"input": "@alice"}]}'
    reply = double.client.post("/api/v1/identify/batch", body)
    assert reply.status == 200
    assert time.monotonic() - began > len(reply.body) / 2048 / 2
    double.put("/double/faults/@alice", cut=True)
    cut = double.client.post("/api/v1/identify/batch", body)
    assert cut.body == reply.body[: len(reply.body) // 2]


def test_an_entry_without_a_user_is_never_not_found(double: Double) -> None:
    """Also for a command, which has no faults, and after the fault, which opens no breaker."""
    assert double.statuses("25") == [503]
    double.put("/double/faults/25", delay="1ms")
    assert double.statuses("25", 6) == [503] * 6
    explained = ask_admin(double.service, "/explain", {"card_number": "25"}).json
    assert explained["result"] == "undetermined"
    double.put("/double/faults/25", drip="1KiB/s")
    reply = double.client.by_card("25")
    assert (reply.status, "retry-after" in reply.headers) == (503, True)
    assert double.statuses("@alice") == [200]


def test_a_fault_is_used_up_by_both_queries_of_a_user(double: Double) -> None:
    assert double.statuses("@twice") + double.statuses("24", 2) == [503, 503, 200]
    double.delete("/double")
    body = b'{"items": [{"input": "@twice"}, {"input": "@twice"}]}'
    assert double.client.post("/api/v1/identify/batch", body).status == 200
    assert double.statuses("@twice", 2) == [503, 200]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("url", b'{"input": "@page"}'),
        ("batch", b'{"items": [{"input": "@alice"}, {"input": "@page"}]}'),
    ],
)
def test_a_page_of_a_proxy_is_not_of_this_service(double: Double, path: str, body: bytes) -> None:
    reply = double.client.post(f"/api/v1/identify/{path}", body, {"X-IDV-Request-ID": "a"})
    assert (reply.status, reply.headers["content-type"]) == (404, "text/html")
    assert reply.body.startswith(b"<!DOCTYPE html>")
    assert {"x-request-id", "x-idv-request-id"}.isdisjoint(reply.headers)


def test_verify_has_the_faults_too(double: Double) -> None:
    """All but those of a body, which it has not; the page of a proxy has no code of ours."""
    double.put("/double/users/@new", plan="Pro", card_number="77")
    texts = ("@alice", "@new", "@down", "@broken", "@busy", "@cut", "@drip", "@nobody", "@page")
    fields = {"Host": "x", "Authorization": f"Bearer {KEY}"}
    given = [{**fields, "X-Idv-Input": text} for text in texts]
    replies = [double.client.send("GET", "/api/v1/verify", each) for each in given]
    assert [(each.status, each.headers.get("x-idv-code")) for each in replies] == [
        *((200, "ok"), (200, "ok"), (503, "backend_unavailable"), (500, "internal")),
        *((429, "rate_limited"), (200, "ok"), (200, "ok"), (404, "not_found"), (404, None)),
    ]
    assert replies[1].headers["x-idv-plan"] == "Pro"
    assert replies[-1].headers["content-type"] == "text/html"
    assert {each.body for each in replies[:-1]} == {b""}
    requests = double.get("/double/requests")["requests"]
    assert [(each["route"], each["query"]) for each in requests] == [
        ("verify", text) for text in texts
    ]
    fields |= {"X-Idv-Input": "@page", "Connection": "close"}
    assert double.client.send("HEAD", "/api/v1/verify", fields).body == b""


def test_a_fault_set_at_run_time_comes_before_that_of_the_fixture(double: Double) -> None:
    assert double.put("/double/faults/@down", status=500).json == {"status": "ok"}
    assert double.put("/double/faults/4000123412341234", status=503).status == 200
    assert double.statuses("@down") + double.statuses("4000123412341234") == [500, 503]
    assert double.delete("/double/faults/@down").status == 200
    assert double.statuses("@down") == [503]
    assert double.delete("/double/faults/@down").json["code"] == "not_set"
    double.put("/double/faults/https%3A%2F%2Fprofiles.example%2Fm%2Falice", status=503)
    assert double.statuses("@alice") == [503]


def test_a_fault_of_all_lookups_leaves_the_order_of_checks(double: Double) -> None:
    """The key and the format are checked first, and a user's own fault goes before."""
    double.put("/double/faults/all", status=500)
    assert double.statuses("@alice") + double.statuses("@down") == [500, 503]
    assert double.client.by_input("alice").status == 422
    wrong = {"Authorization": "Bearer unknown-unknown"}
    assert double.client.post("/api/v1/identify/url", b"{}", wrong).status == 401


def test_a_probable_fault_happens_in_the_same_order_after_each_reset(double: Double) -> None:
    def draw() -> list[int]:
        double.delete("/double")
        double.put("/double/faults/@alice", status=503, probability=0.5)
        return double.statuses("@alice", 40)

    first = draw()
    assert set(first) == {200, 503}
    assert double.get("/double")["faults"]["@alice"]["injected"] == first.count(503)
    assert draw() == first


def test_faults_are_counted(double: Double) -> None:
    double.put("/double/faults/@alice", status=503, times=1)
    double.put("/double/faults/all", delay="1ms")
    double.statuses("@alice", 3)
    double.statuses("@other")
    double.put("/double/faults/@other", status=503, times=1)
    assert double.statuses("@other") == [503]
    alice, others = {"status": 503, "times": 1, "injected": 1}, {"delay": 0.001, "injected": 1}
    expected = {"@alice": alice, "all": others, "@other": alice}
    assert double.get("/double") == {"users": [], "faults": expected}


def test_a_user_is_added_replaced_and_removed(double: Double) -> None:
    user = {"plan": "Pro", "card_number": "77"}
    assert double.put("/double/users/@new", **user).status == 200
    found = json.loads(double.client.by_card("77").body)
    derived = {"nickname": "@new", "profile_url": "https://profiles.example/m/new"}
    assert found == {"status": "ok", **user, **derived}
    url = "https://elsewhere.example/new"
    double.put("/double/users/%40new", plan="Team", card_number="78", profile_url=url)
    assert json.loads(double.client.by_input("@new").body)["profile_url"] == url
    assert double.statuses("77") + double.statuses("78") == [404, 200]
    double.put("/double/faults/78", status=503)
    assert double.statuses("78") + double.statuses("@new") == [503, 200]
    assert double.delete("/double/users/@new").status == 200
    assert double.statuses("@new") == [404]
    assert double.delete("/double/users/@new").json["code"] == "not_set"


def test_a_learned_client_meets_what_is_set_later(double: Double) -> None:
    """Without demo mode, the fast path serves a client that repeats itself."""
    with double.client.connection() as connection:

        def ask() -> Reply | None:
            connection.send(lookup_request("@alice"))
            return connection.read_reply()

        before = [ask() for _ in range(5)]
        double.put("/double/faults/@alice", status=503, times=1)
        after = [ask(), ask()]
        double.put("/double/users/@alice", plan="Other", card_number="79")
        changed = ask()
    assert [each and each.status for each in before + after] == [200] * 5 + [503, 200]
    assert changed is not None
    assert json.loads(changed.body)["plan"] == "Other"
    statuses = [each["status"] for each in double.get("/double/requests")["requests"]]
    assert statuses == [200] * 5 + [503, 200, 200]


def test_the_journal_has_the_requests_in_order(double: Double) -> None:
    double.client.by_input("https://profiles.example/m/alice")
    double.client.by_card("25")
    double.client.by_input("alice")
    double.client.post("/api/v1/identify/card", b"{}", {"Authorization": "Bearer unknown-unknown"})
    with suppress(ConnectionError):
        double.client.by_input("@reset")
    requests = double.get("/double/requests")["requests"]
    assert [(each["route"], each["query"], each["status"], each["code"]) for each in requests] == [
        ("identify/url", "@alice", 200, None),
        ("identify/card", "25", 503, "backend_unavailable"),
        ("identify/url", None, 422, "invalid_format"),
        ("identify/card", None, 401, "token_invalid_or_expired"),
        ("identify/url", "@reset", 503, "backend_unavailable"),
    ]
    assert {each["key"] for each in requests} == {"caller", None}
    assert all(each["timestamp"] and each["request_id"] for each in requests)


@pytest.mark.parametrize(
    ("path", "record", "message"),
    [
        ("/double/faults/@a", {}, "choose a status, proxy_status, delay, reset, cut"),
        ("/double/faults/@a", {"status": 404}, "for a 404 of a proxy write proxy_status: 404"),
        ("/double/faults/@a", {"status": 502}, "status: Input should be 429, 500 or 503"),
        ("/double/faults/@a", {"status": 503, "cut": True}, "choose one of status, proxy_status"),
        ("/double/faults/@a", {"drip": "1KiB"}, "drip: not a byte rate; write it"),
        ("/double/faults/@a", {"drip": "1KiB/m"}, "drip: not a byte rate; write it"),
        ("/double/faults/@a", {"proxy_status": 600, "drip": 0}, "599; drip: Input should be"),
        ("/double/faults/@a", {"times": 0, "probability": 0}, "1; probability: Input should be"),
        ("/double/faults/@a", {"delay": "1s", "more": 1}, "more: this member is not known; there"),
        ("/double/faults/@a", {"delay": "1s", "probability": 2}, "probability: Input should be"),
        ("/double/faults/a", {"status": 503}, "Invalid value: a nickname must begin with @"),
        ("/double/users/@a", {"plan": "", "card_number": "1"}, "plan: String should have at least"),
        ("/double/users/@a", {"plan": "Free", "card_number": "@a"}, "a card_number of digits"),
        ("/double/users/@a", {**USER, "profile_url": "a"}, "profile_url: String should match"),
        ("/double/users/https%3A%2F%2Fprofiles.example%2Fm%2Fa", USER, "nickname with @ in the"),
        ("/double/faults/https%3A%2F%2Fother.example%2Fm%2Fa", {"status": 503}, "profile site"),
    ],
)
def test_a_wrong_value_is_an_error_that_changes_nothing(
    double: Double, path: str, record: dict[str, object], message: str
) -> None:
    reply = double.put(path, **record)
    assert (reply.status, reply.json["code"]) == (422, "invalid_format")
    assert message in reply.json["message"]
    assert double.get("/double") == {"users": [], "faults": {}}


def test_a_card_number_has_one_user(double: Double) -> None:
    """A fixture with two such users is an error, too; replacing the user is none."""
    assert [double.put("/double/users/@a", **USER).status for _ in range(2)] == [200, 200]
    assert double.put("/double/users/@b", **USER | {"card_number": "2"}).status == 200
    reply = double.put("/double/users/@b", **USER)
    assert reply.status == 422
    assert reply.json["message"].startswith("card_number: belongs to another added user")
    assert json.loads(double.client.by_card("1").body)["nickname"] == "@a"
    double.delete("/double/users/@a")
    assert double.put("/double/users/@b", **USER).status == 200
    form = {"Content-Type": "text/plain"}  # as of another web site
    assert ask_admin(double.service, "/double/users/@b", USER, method="PUT", **form).status == 415


def test_no_endpoint_exists_without_demo(tmp_path: Path) -> None:
    (tmp_path / "users.yaml").write_text("users: []\n", encoding="utf-8")
    with serving(WITH_ADMIN, tmp_path) as service:
        for path, method in product(ROUTES, ("GET", "PUT", "DELETE")):
            record = {"status": 503} if method == "PUT" else None
            name = path.replace("([^/]+)", "@alice")
            reply = ask_admin(service, name, record, method=method)
            assert (reply.status, reply.json["code"]) == (404, "no_such_route")


def test_every_member_endpoint_and_field_is_documented(double: Double) -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "double.md"
    cells = re.findall(r"^\| (`[^|]+`) \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    documented = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    double.statuses("@alice")
    (request,) = double.get("/double/requests")["requests"]
    patterns = {path: path.replace("([^/]+)", "@alice") for path in ROUTES}
    endpoints = {
        f"{method} {patterns[path]}"
        for path, handler in ROUTES.items()
        for method in handler.allowed
        if method != "HEAD"
    }
    assert documented == {*Fault.model_fields, *request, *endpoints}


def test_fixture_of_the_page_is_served(tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "double.md"
    (block,) = re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "users.yaml").write_text(block, encoding="utf-8")
    with serving(DEMO, tmp_path) as service:
        double = Double(service)
        assert double.statuses("@recovers", 3) == [503, 503, 200]
        assert double.statuses("@down") + double.statuses("@alice") == [503, 200]


def test_request_of_a_client_that_has_gone_is_in_the_journal(double: Double) -> None:
    """Not only after the delay, when it would be in the journal of another test."""
    double.put("/double/faults/@alice", delay="1h", drip="1KiB/s")
    with socket.create_connection(("127.0.0.1", double.service.port), timeout=10) as sock:
        sock.sendall(lookup_request("@alice"))
        eventually(lambda: double.get("/double")["faults"]["@alice"]["injected"] == 1)
        assert double.get("/double/requests")["requests"] == []
        reset = struct.pack("ii", 1, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
    eventually(lambda: bool(double.get("/double/requests")["requests"]))
    (request,) = double.get("/double/requests")["requests"]
    assert (request["status"], request["code"]) == (503, "backend_unavailable")


@pytest.mark.parametrize(("ids", "subject"), [("none", None), ("full", "@alice")])
async def test_access_log_names_no_user_unless_configured(ids: Ids, subject: str | None) -> None:
    lines: list[str] = []
    log = AccessLog(lines.append, json_lines, ids)
    journal = DoubleState().log_before(log)
    request = LoggedRequest("r", None, "POST", "identify/url", "::1", "k", "@alice")
    record_response(Counters(), journal, request, Result(200, b"{}"), 0.0)
    log.flush()
    assert json.loads(lines[0]).get("subject") == subject
    assert journal.requests[0]["query"] == "@alice"


def test_a_request_from_before_a_reset_is_not_in_the_journal() -> None:
    """A test whose client gives up on a slow user would leave it to the next one."""
    state = DoubleState()
    for seconds in (2.0, 0.0):
        request = LoggedRequest(f"after-{seconds}", None, "POST", "identify/url", "::1", "k")
        record_response(Counters(), state, request, Result(200, b"{}"), seconds)
    assert [each["request_id"] for each in state.requests] == ["after-0.0"]
    assert state.requests.maxlen == 1000  # the oldest is dropped
