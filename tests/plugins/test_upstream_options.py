"""What an operator may write for an upstream, and what its README says of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import idv_upstream
from idv_upstream import UpstreamBackend, UpstreamOptions
from idv_upstream.options import BearerToken
from tornado_idv import BackendOptions, yamltext
from tornado_idv.registry import opened

README = (Path(idv_upstream.__file__).parent / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def options(**members: Any) -> UpstreamOptions:
    return UpstreamOptions.model_validate({"name": "crm", "kind": "upstream", **members})


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("https://directory.example/", "https://directory.example"),
        ("https://directory.example/a/b-c_d.~/", "https://directory.example/a/b-c_d.~"),
        ("http://[::1]:80", "http://[::1]:80"),
        ("http://idv_users:8080", "http://idv_users:8080"),
        ("http://xn--bcher-kva.example.", "http://xn--bcher-kva.example."),
        ("HTTP://Host", "HTTP://Host"),
    ],
)
def test_an_address_is_kept_without_its_last_slash(written: str, kept: str) -> None:
    """The path of an operation is written right behind it."""
    assert options(base_url=written).base_url == kept


@pytest.mark.parametrize(
    "written",
    [
        "",
        "directory.example",
        "//directory.example",
        "ftp://directory.example",
        "http://",
        "http://:80",
        "http://canary:secret@host",
        "http://canary@host",
        "http://host?a=b",
        "http://host/#a",
        "http://host/a?",
        "http://host//",
        "http://host/a//b",
        "http://host/..",
        "http://host/./a",
        "http://host/%2e",
        "http://host/a b",
        "http://host\n",
        "http://host\\@other",
        "http://host:0",
        "http://host:65536",
        "http://host:",
        "http://a..b",
        "http://-a",
        f"http://{'a' * 64}",
        "http://xn--a",
        "http://bücher.example",
        "http://[::1",
        "http://[:::]",
        "http://::1",
        "http://host:\uff18\uff10",
    ],
)
def test_anything_but_a_plain_address_is_refused_without_an_echo(written: str) -> None:
    """What is refused may hold a password, so it is not shown."""
    with pytest.raises(ValidationError) as caught:
        options(base_url=written)
    (problem,) = caught.value.errors()
    assert problem["loc"] == ("base_url",)
    assert problem["msg"].startswith("Value error, not an address this service can ask; write")
    assert "canary" not in problem["msg"] + str(caught.value)


def test_no_credential_is_the_default() -> None:
    """A service behind something that adds the key needs none from us."""
    assert options(base_url="http://host").auth.kind == "none"
    assert options(base_url="http://host", auth={"kind": "none"}).auth.kind == "none"


def test_a_token_is_in_no_repr() -> None:
    """Options end up in logs and tracebacks."""
    built = options(base_url="http://host", auth={"kind": "bearer", "token": "canary+/="})
    assert isinstance(built.auth, BearerToken)
    assert built.auth.token.get_secret_value() == "canary+/="
    assert "canary" not in f"{built!r} {built} {built.auth!r} {UpstreamBackend(built)!r}"


@pytest.mark.parametrize(
    "token",
    ["", "canary canary", "canary=x", "canary\n", "\ncanary", "çanary", "canary" * 86, "="],
    ids=repr,
)
def test_a_token_that_no_header_can_carry_is_refused(token: str) -> None:
    """The message says what a token is made of, and does not show the one refused."""
    with pytest.raises(ValidationError, match="not a bearer token; write") as caught:
        options(base_url="http://host", auth={"kind": "bearer", "token": token})
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("auth", "place"),
    [
        ({}, ("auth",)),
        ({"kind": "basic"}, ("auth",)),
        ({"kind": "none", "token": "a"}, ("auth", "none", "token")),
        ({"kind": "bearer"}, ("auth", "bearer", "token")),
        ({"kind": "bearer", "token": "a", "header": "b"}, ("auth", "bearer", "header")),
    ],
    ids=["empty", "unknown kind", "token without a kind", "no token", "unknown member"],
)
def test_a_credential_that_is_not_one_is_refused(auth: dict[str, str], place: Any) -> None:
    """The problem is told where it is."""
    with pytest.raises(ValidationError) as caught:
        options(base_url="http://host", auth=auth)
    assert [problem["loc"] for problem in caught.value.errors()] == [place]


def test_the_options_have_a_json_schema() -> None:
    """An editor can know them, and sees no default that is a secret."""
    schema = UpstreamOptions.model_json_schema()
    assert {"base_url", "auth"} <= schema["properties"].keys()
    assert schema["additionalProperties"] is False


def test_the_readme_has_the_headings_of_every_plugin() -> None:
    """They are the same in each plugin's folder."""
    headings = re.findall(r"^## (.*)$", README, re.MULTILINE)
    assert headings == ["Name", "Description", "Options", "Failures", "Examples"]


def test_the_readme_names_every_option() -> None:
    """An option without a row is an option that nobody finds."""
    own = UpstreamOptions.model_fields.keys() - BackendOptions.model_fields.keys()
    auth = {f"auth.{member}" for member in BearerToken.model_fields}
    assert set(re.findall(r"^\| `([a-z_.]+)` \|", README, re.MULTILINE)) == own | auth


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
async def test_every_example_of_the_readme_boots(example: str) -> None:
    """References to secrets are filled in as the configuration does."""
    filled = re.sub(r"\$\{(?:env|file):[A-Za-z_.]+\}", "a-key", example)
    entries = yamltext.read(filled.encode(), "README.md")["backends"]
    built = [UpstreamBackend(UpstreamOptions.model_validate(entry)) for entry in entries]
    async with opened(built):
        assert {backend.options.kind for backend in built} == {"upstream"}
    assert len(EXAMPLES) == 3
