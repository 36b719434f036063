"""The steps of a lookup in an upstream: ``tornado-idv lookup --steps``."""

import asyncio
import json
import logging
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from click.testing import CliRunner, Result

from support.databases.upstream_backends import PLAIN, upstream
from support.fakes.clock_and_backends import LoopClock
from support.http.scripted_server import Said, Scripted, header, http, serving
from support.processes.service import in_thread
from tornado_idv import ByNickname, Masker, Step
from tornado_idv.cli import main

CANARY = "canary-0123456789"
CONFIG = """\
profile_sites: [https://profiles.example]
cache: {{ttl: 2m, negative_ttl: 20s}}
backends:
  - {{name: people, kind: yaml, path: people.yaml}}
  - name: crm
    kind: upstream
    base_url: http://127.0.0.1:{port}
    by_nickname:
      url: "/people/{{nickname}}"
      headers: {{X-Tenant: north, X-Api-Key: {canary}}}
    response:
      select: user
      plan: {{path: level, value_map: {{"1": Pro}}}}
      card_number: card
      nickname: login
    auth: {{kind: bearer, token: {canary}}}
"""
ALICE = {"user": {"level": 1, "card": "0012", "login": "@alice"}}


class Try:
    def __init__(self, folder: Path, directory: Scripted) -> None:
        self.folder, self.directory = folder, directory
        self.config = folder / "config.yaml"
        text = CONFIG.format(port=directory.port, canary=CANARY)
        self.config.write_text(text, encoding="utf-8")

    def change(self, old: str, new: str) -> None:
        text = self.config.read_text(encoding="utf-8").replace(old, new)
        self.config.write_text(text, encoding="utf-8")

    def respond(self, body: bytes, status: int = 200, **headers: str) -> None:
        lines = (f"{name.replace('_', '-')}: {value}" for name, value in headers.items())
        self.directory.say(http(status, body, *lines))

    def __call__(self, *arguments: str) -> Result:
        every = ["lookup", *arguments, "--steps", "--backend", "crm", "--config", str(self.config)]
        result = CliRunner().invoke(main, every)
        assert CANARY not in result.output
        return result

    def record(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json").stdout)


def steps_of(record: Any) -> dict[str, Any]:
    (call,) = record["backends"]
    return {each["step"]: each["result"] for each in call["steps"]}


@pytest.fixture
def try_(tmp_path: Path) -> Iterator[Try]:
    (tmp_path / "people.yaml").write_text("users: []\n", encoding="utf-8")
    with in_thread(serving(http(200, json.dumps(ALICE).encode()))) as (directory, _):
        yield Try(tmp_path, directory)


def test_every_step_to_a_user_is_shown(try_: Try) -> None:
    try_.respond(json.dumps(ALICE).encode(), Cache_Control="max-age=50")
    result = try_("@alice")
    assert result.exit_code == 0
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    for line in (
        "status:       ok",
        "plan:         Pro",
        "nickname:     @alice",
        "  cached for at most 50 s",
        f"    request           GET http://127.0.0.1:{try_.directory.port}/people/alice",
        "                      X-Tenant: north",
        "                      X-Api-Key: ***",
        "                      Authorization: ***",
        "    response          200",
        "                      Cache-Control: max-age=50",
        f"    response body     {json.dumps(ALICE)}",
        "    plan              level  ->  1",
        '    card_number       card  ->  "0012"',
        '    nickname          login  ->  "@alice"',
        "    cache control     to be cached for at most 50 s (see cache_control)",
    ):
        assert line in lines
    assert any(line.startswith("  asked crm: found (") for line in lines)
    assert try_.directory.targets == ["/people/alice"]
    assert header(try_.directory.requests[0], "Authorization") == f"Bearer {CANARY}"
    (call,) = try_.record("@alice")["backends"]
    step = {"step": "nickname", "expression": "login", "result": "@alice"}
    assert (call["outcome"], call["steps"][-3]) == ("found", step)
    none = "to be cached not at all (see cache_control)"
    for control, limit in (("no-store", none), ("no-store, max-age=9", none), ("public", None)):
        try_.respond(json.dumps(ALICE).encode(), Cache_Control=control)
        record = try_.record("@alice")
        assert steps_of(record).get("cache control") == limit
        assert record["cache_ttl_s"] == (0 if limit else 120)


def test_credentials_in_a_response_are_masked(try_: Try) -> None:
    """By their names, and as the upstream quotes those of the request."""
    try_.change(f"bearer, token: {CANARY}", "basic, username: us, password: cabbage")
    sent = b64encode(b"us:cabbage").decode()
    body = {**ALICE, "sessions": [{"access_token": "canary-2"}], "asked": ["cabbage", sent]}
    try_.respond(json.dumps(body).encode(), Set_Cookie="session=canary-1", X_Asked=sent)
    printed = try_("@alice").stdout
    assert not [each for each in ("canary", "cabbage", sent) if each in printed]
    assert "Set-Cookie: ***" in printed
    assert '"access_token": "***"' in printed


NAMED = "another-9876543210"
SECRETS = {
    "in the URL": (
        f'{{url: "/c/{{card_number}}?access_t%6Fken={NAMED}", query: {{s_secret: {NAMED}, a: b}}}}',
        "/c/0012?access_t%6Fken=***&s_secret=***&a=b",
    ),
    "in JSON": (
        f'{{method: GET, url: /c, json: {{auth: {{v: "{NAMED}\\""}}, a: ["{{card_number}}"]}}}}',
        '/c{"auth": "***", "a": ["0012"]}',
    ),
    "in a form": (
        f'{{method: GET, url: /, form: {{pwd: {NAMED}, passwd: {NAMED}, b: "{{card_number}}"}}}}',
        "/pwd=***&passwd=***&b=0012",
    ),
}


@pytest.mark.parametrize(("by_card", "rest"), SECRETS.values(), ids=SECRETS)
def test_value_named_like_a_secret_is_masked(try_: Try, by_card: str, rest: str) -> None:
    try_.change("    response:\n", f"    by_card: {by_card}\n    response:\n")
    record = try_.record("0012")
    assert record["status"] == "ok"
    steps = steps_of(record)
    shown = steps["request"] + steps.get("request body", "")
    assert NAMED not in json.dumps(record)
    assert shown.endswith(rest)


PARTS = ("zq7", "kx9", "vb3", "wm5", "jh2", "tn8", "gd4", "12345")
NASTY = "zq7/kx9'vb3+wm5 jh2&tn8=gd4"
ESCAPED = "".join(each if each.isalnum() else f"\\u{ord(each):04X}" for each in NASTY)
MASKED: dict[str, tuple[str, Any]] = {
    "bytes": (NASTY, NASTY.encode()),
    "at any depth": (NASTY, {NASTY: [{"x": (NASTY, None, 1, True)}]}),
    "JSON with escaped slashes": (NASTY, json.dumps(NASTY).replace("/", "\\/")),
    "JSON with more escapes": (NASTY, ESCAPED),
    "percent-encoded": (NASTY, quote(NASTY, safe="").replace("%2F", "%2f")),
    "a form": (NASTY, urlencode({"x": NASTY})),
    "letters beyond ASCII": ("zq7ü", quote("zq7ü")),
    "percent-encoded in the secret": ("zq7%2Fkx9", "zq7/kx9"),
    "a lone surrogate": ("zq7\udcff", "zq7\udcff"),
    "a text in JSON": ('zq7"kx9\\vb3\n', json.dumps('zq7"kx9\\vb3\n')),
    "an object": ("zq7", Path("zq7")),
    "a number": ("12345", {"x": 12345}),
    "braces of a template": ("{{zq7}}", "a={zq7}"),
    "a template": ("/c/{card_number}?sig=zq7", "/c/0012?sig=zq7"),
    "a document in another form": (
        f'{{"a":["{NASTY}",12345.0],"card":"{{card_number}}"}}',
        json.dumps({"card": "0012", "a": [NASTY, 12345.0]}),
    ),
}


def hides_all_parts(text: str) -> bool:
    return not any(part in text for part in PARTS)


@pytest.mark.parametrize(("secret", "value"), MASKED.values(), ids=MASKED)
def test_secret_is_masked_in_any_form(secret: str, value: Any) -> None:
    shown = json.dumps(Masker([secret])(value))
    assert hides_all_parts(shown)
    assert Masker.MASK in shown
    assert ("0012" in shown) == ("0012" in str(value))
    assert Masker(["other", "", "{a}/{b}"])(value) == Masker([])(value)


@pytest.mark.parametrize("reference", ["${env:NASTY}", "${file:secret.txt}"])
def test_value_of_a_reference_is_masked(
    try_: Try, monkeypatch: pytest.MonkeyPatch, reference: str
) -> None:
    monkeypatch.setenv("NASTY", NASTY)
    monkeypatch.setenv("PART", "zq7")
    (try_.folder / "secret.txt").write_text(NASTY + "\n", encoding="utf-8")
    try_.change('{"1": Pro}', '{"1": "${env:PART}"}')
    request = f'by_card: {{url: "/c/{{card_number}}", query: {{sig: "{reference}"}}}}'
    try_.change("    response:\n", f"    {request}\n    response:\n")
    user = {**ALICE["user"], NASTY: [NASTY]}
    try_.respond(json.dumps({"user": user}).encode(), X_Asked=NASTY)
    for arguments in (("0012",), ("0012", "--json")):
        result = try_(*arguments)
        assert result.exit_code == 0
        assert "/c/0012?sig=***" in result.output
        assert hides_all_parts(result.output)
    try_.change("select: user", 'select: "${env:PART}"')
    for arguments in (("0012",), ("0012", "--json")):
        printed = try_(*arguments).stdout
        assert (hides_all_parts(printed), "missing: ***" in printed) == (True, True)


def test_mapping_that_hides_error_is_warned_of(try_: Try, caplog: pytest.LogCaptureFixture) -> None:
    """The directory reports an error with status 200, which is read as "not found"."""
    try_.change("    response:\n", "    response:\n      found_when: ok\n")
    try_.respond(b'{"ok": false, "error": "busy"}')
    assert try_("@alice").exit_code == 1
    first, second = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert "response.found_when (ok) is false not only for missing users" in first
    assert 'each response of status 404 is read as "not found"' in second


def test_query_of_a_kind_that_is_not_served_is_wrong_use(try_: Try) -> None:
    result = try_("0012")
    assert result.exit_code == 2
    assert "crm does not serve this kind of query" in result.stderr


def test_control_characters_are_escaped(try_: Try) -> None:
    for body in (b'{"user": {"level": 1, "card": "1", "login": "\\ud800"}}', b"\x1b[31m\xff\x00"):
        try_.respond(body)
        assert all(line.isprintable() for line in try_("@alice").stdout.splitlines())
        assert try_.record("@alice")["status"] == "undetermined"


@pytest.mark.parametrize(("status", "outcome"), [(404, "error"), (503, "undetermined")])
def test_response_whose_body_is_not_read_has_the_same_outcome(
    try_: Try, status: int, outcome: str
) -> None:
    try_.respond(b"<html>" + b" " * 100_000, status)
    record = try_.record("@alice")
    assert (record["status"], steps_of(record)["response"]) == (outcome, status)
    try_.respond(b"<html>", status)
    assert steps_of(try_.record("@alice"))["response body"] == "<html>"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 99999\r\n\r\n", 404),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n", None),
        (b"", None),
    ],
)
async def test_incomplete_response_has_the_same_outcome(sent: bytes, status: int | None) -> None:
    """A body that decides nothing is waited for less than the timeout of a lookup."""
    options = {"by_nickname": {"url": "/{nickname}"}, "response": PLAIN}
    answer, steps = Said(sent, "drip") if sent else Said(), list[Step]()
    async with upstream(answer, **options) as (server, backend):
        waiting = asyncio.ensure_future(backend.explain(ByNickname("alice"), steps))
        await server.asked()
        await server.dripped()
        LoopClock().forward(1)
        await asyncio.wait([waiting], timeout=None if status else 0.1)
        assert waiting.done() is (status is not None)
        waiting.cancel()
        await asyncio.wait([waiting])
    assert steps[0].name == "request"
    assert [each.result for each in steps if each.name == "response"] == [status] * bool(status)


@pytest.mark.parametrize("path", ["users", "user"])
def test_long_response_is_truncated_above_all_that_of_strangers(try_: Try, path: str) -> None:
    """Of strangers 400 characters of the response serve to see its form."""
    try_.respond(json.dumps({"user": {**ALICE["user"], "more": "x" * 10_000}}).encode())
    assert 4_000 < len(try_("@alice").stdout) < 6_000
    try_.change("select: user", f"select: {path}")
    users = [{"level": 1, "card": f"{n:04}", "login": f"stranger{n}"} for n in range(90)]
    try_.respond(json.dumps({"users": users}).encode())
    result = try_("@alice")
    assert result.exit_code == 3
    assert result.stdout.count("stranger") < 10
    assert len(result.stdout) < 1_500
    assert "in all)" in result.stdout
    assert ("select            users  ->  a list of 90" in result.stdout) == (path == "users")
    try_.respond(json.dumps({"users": users[:1]}).encode())
    assert ("select            users  ->  [{" in try_("@alice").stdout) == (path == "users")


ABSENT = http(404, b'{"error": "no user"}', "Cache-Control: max-age=5")
FOUND = http(200, json.dumps(ALICE).encode())


@pytest.mark.parametrize(
    ("reply", "response", "problem"),
    [
        (ABSENT, "", None),
        (http(503, b"{}"), "", "temporarily unavailable (status 503)"),
        (FOUND, 'check_echo: "false"', "a made-up nickname is found"),
    ],
)
def test_check_looks_up_a_made_up_user_if_it_is_asked_to(
    try_: Try, reply: bytes, response: str, problem: str | None
) -> None:
    try_.change("select: user", f"select: user\n      {response}")
    try_.directory.say(reply)
    arguments = ["check", "--config", str(try_.config)]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    assert try_.directory.requests == []
    result = CliRunner().invoke(main, [*arguments, "--online"])
    assert result.exit_code == (problem is not None)
    assert ("config.yaml:5:5: backends[1]: a made-up nickname" in result.stderr) == bool(problem)
    assert (problem or "") in result.stderr
    assert try_.directory.targets[0].startswith("/people/x")
    assert CliRunner().invoke(main, [*arguments, "--online", "--config-only"]).exit_code == 2
