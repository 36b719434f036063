"""Attributes that come back from a real server under other names than were requested."""

import logging
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from support.databases.ldap_server import BIND, OPTIONS, LdapServer, person, require
from support.fakes.outcomes import outcome
from tornado_idv import Broken, ByNickname, StartError
from tornado_idv.registry import opened_backend

require()

from idv_ldap.backend import LdapBackend  # noqa: E402
from idv_ldap.options import LdapOptions  # noqa: E402
from idv_ldap.server import parse_types, select  # noqa: E402

PERSONS = (
    person("alice", "1", "title: Pro", "ou: Gold"),
    person("english", "2", "title;lang-en: Pro"),
    person("disabled", "4", "employeeType;lang-en: disabled"),
    person("exact", "6", "labeledURI: Dora"),
)
UNSEEN = "but no expression in response uses this name: the value would be ignored"
HIDDEN_SCHEMA = 'access to dn.base="cn=Subschema" by * none\naccess to * by * read'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LdapServer]:
    types = (
        "attributetype ( 1.1.1 NAME 'homePage' SUP labeledURI )\n"
        "attributetype ( 1.1.2 NAME 'firstHomePage' SUP homePage )"
    )
    with LdapServer(tmp_path_factory.mktemp("ldap") / "server", PERSONS, options=types) as server:
        yield server


async def found(
    server: LdapServer,
    who: str,
    response: dict[str, Any],
    *,
    bind: dict[str, str] | None = BIND,
    filter_: str = "(userid={nickname})",
    case: str = "preserve",
) -> object:
    options = {
        **OPTIONS,
        "name": "staff",
        "kind": "ldap",
        "uris": [server.uri],
        "bind": bind,
        "by_nickname": {"filter": filter_},
        "by_card": None,
        "response": {**OPTIONS["response"], **plan("title"), **response},
    }
    made = LdapBackend(LdapOptions.model_validate(options, context={"nickname_case": case}))
    assert made.serves == {ByNickname}
    async with opened_backend(made) as backend:
        result = await outcome(backend, ByNickname(who))
        if result != "found":
            return result
        user: Any = await backend.find(ByNickname(who))
        return user.plan


def plan(path: str) -> dict[str, Any]:
    return {"plan": {"path": path, "default": "Free"}}


@pytest.mark.parametrize(
    ("nickname", "response", "expected"),
    [
        ("alice", plan("ou"), "Gold"),
        ("alice", plan("organizationalUnitName"), "Gold"),
        ("alice", plan("businessCategory"), "Free"),
        ("alice", {"nickname": "userid"}, "Pro"),
        ("alice", {"not_known_when": "organizationalUnitName == 'Gold'"}, "not found"),
        ("alice", plan("name"), f"broken: the server returned cn, {UNSEEN}"),
        ("english", plan("title"), f"broken: the server returned title;lang-en, {UNSEEN}"),
        ("english", plan('title || "title;lang-en"'), "Pro"),
        (
            "disabled",
            {"not_known_when": "employeeType == 'disabled'"},
            "broken: the server returned employeeType;lang-en, ",
        ),
        ("disabled", {"not_known_when": "\"employeeType;lang-en\" == 'disabled'"}, "not found"),
    ],
)
async def test_absent_is_not_concluded_from_another_name(
    server: LdapServer, nickname: str, response: dict[str, Any], expected: str
) -> None:
    result = str(await found(server, nickname, response))
    assert result.startswith(expected)
    assert "disabled" not in result


@pytest.mark.parametrize(
    ("filter_", "refused"),
    [
        ("(|(uid={nickname})(labeledURI;lang-en:dn:=@{nickname}))", "labeledURI"),
        ("(HomePage={nickname})", "HomePage"),
        ("(|(homePage:caseIgnoreMatch:={nickname})(homePage=@{nickname}))", "homePage"),
        ("(firstHomePage={nickname})", "firstHomePage"),
        ("(&(!(homePage=x))(labeledURI:caseIgnoreMatch:={nickname}))", None),
    ],
)
async def test_case_sensitive_attribute_is_refused_for_folded_nicknames(
    server: LdapServer, filter_: str, refused: str | None
) -> None:
    """The service looks up @dora, and the entry has Dora."""
    text = f"{refused} is compared by caseExactMatch: write \\({refused}:caseIgnoreMatch:="
    with pytest.raises(StartError, match=text) if refused else nullcontext():
        name = {"nickname": "labeledURI"}
        assert await found(server, "dora", name, filter_=filter_, case="fold") == "Free"


async def test_without_a_schema_names_must_be_those_of_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with LdapServer(tmp_path / "hidden", PERSONS, options=HIDDEN_SCHEMA) as server:
        for path, expected, case in (
            ("organizationalUnitName", f"broken: the server returned ou, {UNSEEN}", "preserve"),
            ("OU", "Gold", "fold"),  # last: another connection may log after the close
        ):
            result = await found(server, "alice", plan(path), case=case)
            assert result == expected
            text = "the schema cannot be read: unknown attributes are not detected"
            assert text in caplog.text
            assert ("by_nickname needs attributes that ignore case" in caplog.text) == (
                case == "fold"
            )
            caplog.clear()


async def test_filter_by_a_type_that_others_are_derived_from(server: LdapServer) -> None:
    """The entry that is evidence for "not found" has ``cn`` and ``sn`` only."""
    for who, expected in (("nobody", "not found"), ("alice", "Pro")):
        filter_ = "(name={nickname})"
        assert await found(server, who, {}, filter_=filter_) == expected


@pytest.mark.parametrize(
    ("attribute", "in_filter"),
    [("employeeType", False), ("employeeType", True), ("businessCategory", False)],
)
async def test_attribute_that_is_hidden_or_on_no_entry_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, attribute: str, *, in_filter: bool
) -> None:
    """A filter may find no user by it, and others by another attribute."""
    caplog.set_level(logging.WARNING, "idv_ldap")
    hidden = "access to attrs=employeeType by * none\naccess to * by * read"
    entries = [*PERSONS, person("plain", "9", "employeeType: disabled")]
    with LdapServer(tmp_path / "server", entries, options=hidden) as server:
        condition = {} if in_filter else {"not_known_when": f"{attribute} == 'disabled'"}
        filter_ = f"(|(uid={{nickname}})({attribute if in_filter else 'cn'}={{nickname}}))"
        await found(server, "alice", condition, bind=None, filter_=filter_)
    warnings = [each for each in caplog.messages if "bind.dn may not read it" in each]
    assert [each.split("no entry has ")[1].split(",")[0] for each in warnings] == [attribute]


DEFINITIONS = [
    b"( 2.5.4.41 NAME 'name' DESC 'RFC4519: SUP (nothing) NAME of all' EQUALITY caseIgnoreMatch )",
    b"( 2.5.4.3 NAME ( 'cn' 'commonName' ) DESC 'common name' SUP name )",
    b"( 1.1.1 NAME 'nick' OBSOLETE SUP 2.5.4.3 SYNTAX '1' X-ORIGIN 'user defined' )",
    b"( 3.3.3 NAME 'memberOf' SYNTAX '1.3.6.1.4.1.1466.115.121.1.12' NO-USER-MODIFICATION )",
    b"( 4.4.4 DESC 'a type without a name' SUP name )",
    b"no definition: \xff",
]


@pytest.mark.parametrize(
    ("returned", "requested", "expected"),
    [
        ({"CN": [b"a"]}, ["commonName"], {"commonName": [b"a"]}),
        (
            {"cn": [b"a"]},
            ["cn", "commonName", "2.5.4.3"],
            {"cn": [b"a"], "commonName": [b"a"], "2.5.4.3": [b"a"]},
        ),
        ({"cn": [b"a"], "commonName": [b"b"]}, ["cn"], {"cn": [b"a", b"b"]}),
        ({"cn;x-b;lang-en": [b"a"]}, ["cn;lang-EN;x-b"], {"cn;lang-EN;x-b": [b"a"]}),
        ({"cn;lang-en;x-b": [b"a"]}, ["cn;lang-en"], None),
        ({"nick": [b"a"]}, ["name"], None),
        ({"memberOf": [], "memberOf;range=0-1": [b"a"]}, ["memberOf"], None),
        ({"memberOf": [b"a"], "memberOf;range=0-1": []}, ["memberOf"], {"memberOf": [b"a"]}),
        ({"unknown": [b"a"]}, ["cn"], None),
    ],
    ids=repr,
)
def test_values_are_selected_by_type_and_options(
    returned: dict[str, list[bytes]], requested: list[str], expected: dict[str, list[bytes]] | None
) -> None:
    types, _ = parse_types(DEFINITIONS)
    if expected is None:
        with pytest.raises(Broken, match="no expression in response uses this name"):
            select(types, returned, requested)
    else:
        assert select(types, returned, requested) == expected
