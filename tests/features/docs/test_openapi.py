"""The OpenAPI document: valid, complete, and true of the running service."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from support.http.contract_values import ABSENT, BAD_CARDS, BAD_INPUTS, FOUND, SITE
from support.processes.process import Invoke
from support.processes.proxies import find_tool
from support.processes.service import CONFIG, KEY, USERS, Client, serving
from tornado_idv.config.load import load_without_references
from tornado_idv.features.docs.openapi import Document, describe_api
from tornado_idv.registry import installed_kinds, plugin_manager
from tornado_idv.web.errors import REASONS, ApiError

ROOT = Path(__file__).parents[3]
SETTINGS = {
    "defaults": "",
    "case folded": "identifiers: {nickname_pattern: '[a-z]{3,8}', nickname_case: fold}\n",
    "card of 4 digits": "identifiers: {card_length: [4, 4]}\n",
    "card of 20 digits or more": "identifiers: {card_length: [20, 64]}\n",
    **{
        f"JavaScript lacks {each}": f"identifiers: {{nickname_pattern: '{each}'}}\n"
        for each in ("(?i)[a-z]+", r"\p{L}+", "[[a-z]1]+", "[a-z&&[^1]]+", "[a-z--1]+", "[a-z~~1]+")
    },
    "pattern without alice": "identifiers: {nickname_pattern: '[0-9]{3}'}\n",
}


def document_for(config: str, folder: Path) -> Document:
    """Return the document of a service with this configuration."""
    path = folder / "openapi-config.yaml"
    path.write_text(config, encoding="utf-8")
    settings, _ = load_without_references(path, installed_kinds(plugin_manager()), {})
    return describe_api(settings)


@pytest.fixture
def document(tmp_path: Path) -> Document:
    return document_for(CONFIG + USERS, tmp_path)


def schema_of(document: Document, name: str) -> Document:
    schema: Document = document["components"]["schemas"][name]
    # In Python, "$" is also before a line break at the end.
    return json.loads(json.dumps(schema).replace('$"', '\\\\Z"').replace("$)", "\\\\Z)"))


def accepts(schema: Document, value: object) -> bool:
    return Draft202012Validator(schema).is_valid(value)


@pytest.mark.parametrize("name", SETTINGS)
def test_document_is_valid_and_its_examples_are_too(tmp_path: Path, name: str) -> None:
    document = document_for(CONFIG + USERS + SETTINGS[name], tmp_path)
    validate(document)
    schemas = document["components"]["schemas"]
    for example in schemas["User"].get("examples", []):
        Draft202012Validator(schemas["User"]).validate(example)
    for path, schema in (("url", "ByUrl"), ("card", "ByCard"), ("batch", "Items")):
        body = document["paths"][f"/api/v1/identify/{path}"]["post"]["requestBody"]
        examples = body["content"]["application/json"].get("examples", {})
        assert bool(examples) == ("without alice" not in name)
        for example in examples.values():
            Draft202012Validator(schemas[schema]).validate(example["value"])


def test_patterns_are_those_of_the_service(document: Document) -> None:
    """All but the case and the port of a site, for which the canonical spelling is described."""
    spelled = [f"{SITE}:443/m/alice", "HTTPS://Profiles.EXAMPLE/m/alice"]
    by_url, by_card = schema_of(document, "ByUrl"), schema_of(document, "ByCard")
    for text in FOUND + ABSENT:
        assert accepts(by_url, {"input": text}) == (text not in spelled), text
    for schema, member, bad in ((by_url, "input", BAD_INPUTS), (by_card, "card_number", BAD_CARDS)):
        texts = [text for named in bad.values() for text in named.values()]
        assert [text for text in texts if accepts(schema, {member: text})] == []
    assert accepts(by_card, {"card_number": "0012"})


def test_profile_url_may_be_of_any_configured_site(tmp_path: Path) -> None:
    other = "https://old.example"
    config = CONFIG.replace(f"[{SITE}]", f"[{SITE}, '{other}']") + USERS
    by_url = schema_of(document_for(config, tmp_path), "ByUrl")
    for site in (SITE, other):
        assert accepts(by_url, {"input": f"{site}/m/alice"})
    assert not accepts(by_url, {"input": "https://evil.example/m/alice"})


def test_nickname_of_a_service_that_folds_case_may_have_any_case(tmp_path: Path) -> None:
    """Generated clients must refuse neither the request nor the response."""
    folds = SETTINGS["case folded"]
    document = document_for(CONFIG + USERS + folds, tmp_path)
    user = schema_of(document, "User")
    example = {**user["examples"][0], "nickname": "@ALICE", "profile_url": f"{SITE}/m/ALICE"}
    assert accepts(user, example)
    by_url = schema_of(document, "ByUrl")
    for each in ("@ALICE", f"{SITE}/m/Alice"):
        assert accepts(by_url, {"input": each})
    sentence = "Upper and lower case are the same"
    assert sentence in json.dumps(document)
    assert sentence not in json.dumps(document_for(CONFIG + USERS, tmp_path))


def test_every_error_and_every_reason_is_in_the_document(document: Document) -> None:
    responses = document["components"]["responses"]
    examples = [
        example["value"]["code"]
        for response in responses.values()
        for example in response["content"]["application/json"]["examples"].values()
    ]
    assert sorted(examples) == sorted({each.code for each in ApiError} - {"no_such_route"})
    for error, reasons in REASONS.items():
        field = responses[str(error.status)]["headers"]["X-Error-Reason"]["schema"]
        assert {each["const"] for each in field["oneOf"]} == set(reasons)


def test_paths_follow_the_configuration(tmp_path: Path) -> None:
    server = "port: 0, base_path: /x, health_path: /healthz,"
    config = CONFIG.replace("port: 0,", server) + USERS
    document = document_for(config, tmp_path)
    validate(document)
    assert list(document["paths"]) == [
        *("/x/api/v1/identify/url", "/x/api/v1/identify/card", "/x/api/v1/identify/batch"),
        *("/x/api/v1/key", "/healthz"),
    ]
    assert document["servers"] == [{"url": "/"}], "base_path is in the paths"


def test_document_of_the_demo_is_in_the_repository(invoke: Invoke) -> None:
    printed = invoke("openapi", "--config", ROOT / "config.yaml").stdout
    assert (ROOT / "openapi.json").read_text(encoding="utf-8") == printed, (
        "renew it with: tornado-idv openapi > openapi.json"
    )


@pytest.mark.parametrize(("port", "is_needed"), [("0", False), ("'${env:ABSENT}'", True)])
def test_document_needs_no_secret(
    tmp_path: Path, invoke: Invoke, port: str, *, is_needed: bool
) -> None:
    path, auth = tmp_path / "config.yaml", "auth: {kind: bearer, token: '${env:ABSENT}'}"
    config = CONFIG.replace("port: 0", f"port: {port}")
    config += f"  - {{name: up, kind: upstream, base_url: 'http://x', {auth}}}\n"
    path.write_text(config, encoding="utf-8")
    done = invoke("openapi", "--config", path)
    assert (done.exit_code, "ABSENT" in done.stderr) == (is_needed, is_needed)


def test_document_is_served_only_if_configured(tmp_path: Path, wire: Client) -> None:
    paths = ["/openapi.json", "/docs", "/docs/docs.js", "/docs/docs.css"]
    assert [wire.send("GET", path, {"Host": "x"}).status for path in paths] == [404] * 4
    config = CONFIG.replace("port: 0,", "port: 0, docs: true,") + USERS
    with serving(config, tmp_path) as service:
        client = Client(service.port)
        replies = [client.send("GET", path, {"Host": "x"}) for path in paths]
        types = [reply.headers["content-type"].partition(";")[0] for reply in replies]
        assert types == ["application/json", "text/html", "text/javascript", "text/css"]
        assert json.loads(replies[0].body) == document_for(config, tmp_path)
        assert replies[1].headers["referrer-policy"] == "no-referrer"
        policy = replies[1].headers["content-security-policy"].split("; ")
        none = ("default-src", "base-uri", "form-action", "frame-ancestors")
        own = dict.fromkeys(("script-src", "style-src", "connect-src"), "'self'")
        allowed = dict.fromkeys(none, "'none'") | own | {"img-src": "data:"}
        assert dict(each.split(maxsplit=1) for each in policy) == allowed
        assert KEY.encode() not in b"".join(reply.body for reply in replies)


@pytest.mark.parametrize("base_path", ["", "/x"])
def test_browser_is_led_to_the_page_where_it_is_served(tmp_path: Path, base_path: str) -> None:
    """Any other request is answered as one for an unknown path."""
    browser = {"Host": "x", "Accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"}
    others = [("GET", {"Host": "x"}), ("GET", {"Host": "x", "Accept": "*/*"})]
    others += [("HEAD", browser), ("POST", browser)]
    server = f"port: 0, base_path: '{base_path}', docs: true,"
    with serving(CONFIG.replace("port: 0,", server) + USERS, tmp_path) as service:
        client = Client(service.port)
        unknown = client.send("GET", "/elsewhere", {"Host": "x"})
        for method, fields in others:
            reply = client.send(method, f"{base_path}/", fields)
            assert (reply.status, {*reply.headers}) == (404, {*unknown.headers})
            assert reply.body == (b"" if method == "HEAD" else unknown.body)
        led = client.send("GET", f"{base_path}/", browser)
        assert (led.status, led.headers["location"]) == (302, "docs")
        assert not base_path or client.send("GET", "/", browser).status == 404


@pytest.mark.slow
@pytest.mark.ci
def test_linter_finds_nothing() -> None:
    modules = ROOT / "tests" / "contract" / "node_modules"
    redocly = find_tool("redocly", modules / ".bin")
    environment = {
        **os.environ,
        "REDOCLY_TELEMETRY": "off",
        "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true",
    }
    done = run(
        redocly, "lint", "--format=json", str(ROOT / "openapi.json"), environment=environment
    )
    report = json.loads(done.stdout[done.stdout.index("{") :])
    assert report["problems"] == []


@pytest.mark.slow
@pytest.mark.ci
def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    """With valid and invalid requests, made of the document and sent to the service."""
    schemathesis = find_tool("schemathesis", ROOT / ".venv-tools" / "bin")
    server = "port: 0, docs: true, health_path: /healthz,"
    with serving(CONFIG.replace("port: 0,", server) + USERS, tmp_path) as service:
        done = run(
            *(schemathesis, "run", f"http://127.0.0.1:{service.port}/openapi.json"),
            *("--header", f"Authorization: Bearer {KEY}", "--checks", "all", "--mode", "all"),
            *("--seed", "1", "--max-examples", "20", "--no-color"),
            environment={**os.environ, "HOME": str(tmp_path)},
            folder=tmp_path,
        )
    assert done.returncode == 0, done.stdout
    assert re.search(r"Tested: 5$", done.stdout, re.MULTILINE)
    (cases,) = re.findall(r"(\d+) generated", done.stdout)
    assert int(cases) > 100


def run(*command: str | Path, environment: dict[str, str], folder: Path = ROOT) -> Any:
    return subprocess.run(
        command,
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
