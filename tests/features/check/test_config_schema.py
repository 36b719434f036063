"""The JSON Schema agrees with what is loaded, and describes all of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from support.fixtures.configs import Load, ProblemsIn
from support.processes.editor import as_editor_reads
from tornado_idv.config.kinds import settings_type
from tornado_idv.features.check.schema import json_schema
from tornado_idv.interfaces.backend import BackendOptions
from tornado_idv.interfaces.hookspecs import Kinds

GOOD = f"""\
profile_sites: [https://profiles.example]
server: {{port: 0, base_path: /identity, max_body: 16KiB, drain: {{delay: 1.5s}},
  trusted_proxies: [10.0.0.0/8]}}
auth:
  keys:
    - {{id: shop, sha256: {"a" * 64}, scopes: [admin], expires: "2027-01-01T00:00:00Z"}}
    - {{id: demo, token: plain-token-of-a-partner}}
limits: {{requests: 100/second, misses: 300/10 minutes, failed_auth: 60/m}}
cache: {{ttl: 1h, max_entries: 7}}
identifiers: {{card_length: [4, 16]}}
backends:
  - {{name: members, kind: table, path: members.db, columns: {{nickname: nick}}}}
  - {{name: crm, kind: remote, url: x, timeout: 1s, auth: {{kind: token, token: x}}}}
logging: {{level: debug}}
demo: true
"""

ENVIRON = {
    **dict.fromkeys(("COUNT", "MOST", "PORT", "SIZE"), "16"),
    "PATH": "x",
    "SHA256": "b" * 64,
    "SCOPE": "admin",
    "EXPIRES": "2027-01-01T00:00:00Z",
    "SHARE": "0.5",
    "KIND": "table",
    "DEMO": "yes",
}


@pytest.fixture(scope="module")
def schema(kinds: Kinds) -> dict[str, Any]:
    return json_schema(kinds)


def errors(schema: dict[str, Any], text: str) -> list[str]:
    validator = Draft202012Validator(schema)
    return [error.json_path for error in validator.iter_errors(as_editor_reads(text))]


def test_the_schema_is_valid_and_a_good_configuration_passes(
    schema: dict[str, Any], load_text: Load
) -> None:
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["title"] == "tornado-idv configuration"
    load_text(GOOD)
    assert errors(schema, GOOD) == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("profile_sites", "profile_site"),
        ("port: 0", "port: 65536"),
        ("/identity", "/identity/"),
        ("10.0.0.0/8", "proxy.example"),
        ("1.5s", "1.5"),
        ("id: shop, ", ""),
        (f"sha256: {'a' * 64}, ", ""),
        (f"sha256: {'a' * 64}, ", f"sha256: {'a' * 64}, token: plain-token-of-a-partner, "),
        ("[admin]", "[administrator]"),
        ("max_entries: 7", "max_entries: 0"),
        ("100/second", "100"),
        ("300/10 minutes", "{rate: 300}"),
        ("id: demo", "id: demo, limits: {failed_auth: 60/m}"),
        ("[4, 16]", "[4, 16, 17]"),
        ("kind: table", "kind: tables"),
        ("nickname: nick", "nick: nickname"),
        ("timeout: 1s", "timeout: null"),
        ("level: debug", "level: loud"),
        ("demo: true", "demo: perhaps"),
    ],
)
def test_a_bad_configuration_fails(
    schema: dict[str, Any], problems_in: ProblemsIn, right: str, wrong: str
) -> None:
    """What the schema refuses, loading refuses too."""
    assert right in GOOD
    text = GOOD.replace(right, wrong)
    assert errors(schema, text)
    assert problems_in(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "other"),
    [
        ("port: 0", 'port: "8080"'),
        ("port: 0", "port: '${env:PORT}'"),
        ("base_path: /identity", "base_path: '/${env:PATH}'"),
        ("1.5s", "'${file:seconds}'"),
        ("id: shop", "id: 12"),
        (f"sha256: {'a' * 64}", "sha256: '${env:SHA256}'"),
        (f"sha256: {'a' * 64}", f"sha256: {'7' * 64}"),
        ("plain-token-of-a-partner", "1234567890123456"),
        ("[admin]", "['${env:SCOPE}']"),
        ('"2027-01-01T00:00:00Z"', "2027-01-01T00:00:00Z"),
        ('"2027-01-01T00:00:00Z"', "'${env:EXPIRES}'"),
        ("id: demo", "id: demo, owner: 1e5"),
        ("id: demo", "id: demo, owner: "),
        ("max_entries: 7", "max_entries: '7'"),
        ("300/10 minutes", "{rate: '${env:COUNT}/second', log_only: yes}"),
        ("id: demo", "id: demo, limits: {misses: 1/d, requests: 5/2h}"),
        ("max_entries: 7", "jitter: '0.5', refresh_ahead: '${env:SHARE}'"),
        ("[4, 16]", "['4', '${env:MOST}']"),
        ("kind: table", "kind: '${env:KIND}'"),
        ("{kind: token, token: x}", "{kind: token, token: 12}"),
        ("url: x", "url: x, query: {limit: 2, all: true, of: '${env:SIZE}'}"),
        ("demo: true", "demo: yes"),
        ("demo: true", "demo: 1"),
        ("demo: true", "demo: '${env:DEMO}'"),
    ],
)
def test_every_spelling_of_a_good_configuration_passes(
    schema: dict[str, Any], load_text: Load, tmp_path: Path, right: str, other: str
) -> None:
    """What loading accepts, the schema accepts too."""
    (tmp_path / "seconds").write_text("1s")
    assert right in GOOD
    text = GOOD.replace(right, other)
    load_text(text, ENVIRON)
    assert errors(schema, text) == []


@pytest.mark.parametrize("installed", [["table"], ["remote", "table"]], ids=str)
def test_the_kinds_are_those_installed(kinds: Kinds, installed: list[str]) -> None:
    schema = json_schema(Kinds({name: kinds.backends[name] for name in installed}))
    backends = schema["properties"]["backends"]["items"]
    assert list(backends["discriminator"]["mapping"]) == installed
    *options, _ = [each.get("$ref") for each in backends["oneOf"]]
    assert len(options) == len(installed)


def test_without_kinds_no_backend_passes() -> None:
    Draft202012Validator.check_schema(json_schema(Kinds()))
    assert "$.backends[0]" in errors(json_schema(Kinds()), GOOD)


def test_defaults_have_units(kinds: Kinds) -> None:
    server = json_schema(kinds)["$defs"]["ServerSettings"]["properties"]
    assert {name: each["default"] for name, each in server.items() if "default" in each} == {
        **settings_type(kinds)
        .model_fields["server"]
        .default.model_dump(exclude_none=True, exclude={"drain"}),
        "max_body": "16KiB",
        "idle_timeout": "10s",
        "body_timeout": "5s",
        "request_timeout": "2s",
        "trusted_proxies": [],
    }


def test_every_setting_and_option_is_described_and_its_default_is_valid(
    schema: dict[str, Any],
) -> None:
    for title, section in {**schema["$defs"], "Settings": schema}.items():
        for name, each in section["properties"].items():
            own = schema["$defs"].get(each.get("$ref", "").rpartition("/")[2], {})
            assert each.get("description") or own.get("description"), f"{title}.{name}"
            if "default" in each:
                validator = Draft202012Validator({**each, "$defs": schema["$defs"]})
                assert validator.is_valid(each["default"]), f"{title}.{name}"


def test_an_option_without_a_schema_accepts_anything(kinds: Kinds) -> None:
    class Odd(BackendOptions):
        clock: Callable[[], float] | None = None

    class OddBackend(kinds.backends["table"]):
        options_type = Odd

    schema = json_schema(Kinds({"odd": OddBackend}))
    Draft202012Validator.check_schema(schema)
    assert schema["$defs"]["Odd"]["properties"]["clock"] == {"title": "Clock"}
