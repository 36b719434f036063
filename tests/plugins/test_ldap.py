"""The LDAP backend over a real server: conformance, mapping, TLS, faults and commands."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from idv_ldap.options import LdapOptions
from support.databases.ldap_server import ADMIN, PASSWORD, PEOPLE, SUFFIX, LdapServer, require
from support.databases.ldap_server import OPTIONS as SERVER_OPTIONS
from support.fakes.clock_and_backends import LoopClock
from support.fakes.outcomes import outcome
from support.processes.ports import free_port
from support.processes.process import COMMAND, Invoke, running
from support.processes.service import CONFIG
from tornado_idv import ByCard, ByNickname, DegradedStartError, Query, StartError, Unavailable, User
from tornado_idv.interfaces.backend import AnyBackend
from tornado_idv.kit.testing import BackendConformance, MakeBackend, make_backend
from tornado_idv.registry import opened_backend

require()

from idv_ldap import pool  # noqa: E402
from idv_ldap.backend import LdapBackend  # noqa: E402
from idv_ldap.errors import ldap, to_lookup_failed  # noqa: E402
from idv_ldap.search import Search  # noqa: E402

pytestmark = pytest.mark.slow

Make = Callable[..., AnyBackend]
ALICE = User("Pro", "4000123412341234", "alice")
BOB = User("Free", "0012345670", "bob")
RESPONSE = {
    "nickname": "uid",
    "card_number": "employeeNumber",
    "plan": {"path": "title", "default": "Free"},
    "not_known_when": "employeeType == 'disabled'",
}
OPTIONS = {**SERVER_OPTIONS, "response": RESPONSE}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LdapServer]:
    with LdapServer(tmp_path_factory.mktemp("ldap") / "server") as server:
        yield server


@pytest.fixture(autouse=True)
def started(server: LdapServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "RETRY_INTERVAL", 0.1)
    if server.process is None:
        server.start()


@pytest.fixture
def backend_of(server: LdapServer, tmp_path: Path) -> Make:
    def make(**options: Any) -> AnyBackend:
        given = {"uris": [server.uri], **OPTIONS, **options}
        return make_backend(LdapBackend, tmp_path, **given)

    return make


NUMBERS = count()


class TestConformance(BackendConformance):
    """Nicknames differ in case here, which LDAP ignores unless the filter says otherwise."""

    @pytest.fixture
    def make_backend(self, server: LdapServer, tmp_path: Path) -> MakeBackend:
        def make(users: Sequence[User]) -> AnyBackend:
            base = f"ou={next(NUMBERS)},{SUFFIX}"
            with connected(server) as handle:
                handle.add_s(base, [("objectClass", b"organizationalUnit")])
                for each in users:
                    texts = {"sn": "x", "uid": each.nickname, "employeeNumber": each.card_number}
                    texts |= {"title": each.plan, "labeledURI": each.profile_url or ""}
                    entry = [(name, text.encode()) for name, text in texts.items() if text]
                    entry.append(("objectClass", b"inetOrgPerson"))
                    handle.add_s(f"cn={next(NUMBERS)},{base}", entry)

            def with_match(equals: str) -> AnyBackend:
                filter_ = f"(|(uid{equals}{{nickname}})(uid{equals}@{{nickname}}))"
                options = {
                    **OPTIONS,
                    "base_dn": base,
                    "scope": "onelevel",
                    "by_nickname": {"filter": filter_},
                    "response": {**RESPONSE, "profile_url": "labeledURI"},
                }
                return make_backend(LdapBackend, tmp_path, uris=[server.uri], **options)

            folding = with_match("=")
            return folding if folding.options.folds_nicknames else with_match(":caseExactMatch:=")

        return make

    @pytest.fixture
    def failing_backend(self, backend_of: Make) -> AnyBackend:
        return backend_of(uris=[f"ldap://127.0.0.1:{free_port()}"])


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (ByCard("0012345670"), BOB),
        (ByNickname("*"), None),
        (ByNickname("st*r"), User("Free", "4", "st*r")),
        (ByNickname("alice)(uid=*"), None),
        (ByCard("77"), "broken: more than one user for one query"),
    ],
    ids=repr,
)
async def test_entry_becomes_a_user(
    backend_of: Make, query: Query, expected: User | str | None
) -> None:
    async with opened_backend(backend_of()) as backend:
        if isinstance(expected, str):
            assert await outcome(backend, query) == expected
        else:
            assert await backend.find(query) == expected


async def test_refusals_are_of_several_kinds_and_pause_the_bind(
    backend_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CONSTRAINT_VIOLATION", "INAPPROPRIATE_AUTH", "UNWILLING_TO_PERFORM"):
        refuse = Mock(side_effect=getattr(ldap, name))
        monkeypatch.setattr(ldap.ldapobject.LDAPObject, "simple_bind_s", refuse)
        with pytest.raises(DegradedStartError):
            await backend_of(bind={"dn": name, "password": "x"}).open()


def test_errors_that_pass_are_no_defects() -> None:
    for name in ("ADMINLIMIT_EXCEEDED", "CONNECT_ERROR", "TIMELIMIT_EXCEEDED", "UNAVAILABLE"):
        assert isinstance(to_lookup_failed(getattr(ldap, name)()), Unavailable)
    assert "respond in time" in to_lookup_failed(TimeoutError()).reason


async def test_bytes_need_a_function(backend_of: Make) -> None:
    response = {**RESPONSE, "plan": "jpegPhoto"}
    async with opened_backend(backend_of(response=response)) as backend:
        result = await outcome(backend, ByNickname("binary"))
        assert result == "broken: a wrong record: plan (jpegPhoto) is binary, not text"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bind": {"dn": ADMIN, "password": "wrong"}}, "refuses bind.dn or its password"),
        ({"by_card": {"filter": "(employeeNumber={card_number}))("}}, "is not valid (RFC 4515)"),
        ({"base_dn": "ou=none,dc=example,dc=org"}, "base_dn does not exist, or bind.dn may not"),
        ({"base_dn": "none"}, "base_dn or bind.dn is not a distinguished name"),
        (
            {"by_card": {"filter": "(&(objectClass=person)(emplNumber={card_number}))"}},
            "the server has no attribute emplNumber",
        ),
        (
            {"response": {**RESPONSE, "not_known_when": 'employeeType == "disabled"'}},
            "the server has no attribute disabled",
        ),
        ({"uris": ["ldaps://127.0.0.1"], "tls": {"ca_file": "none.pem"}}, "none.pem: cannot be"),
        ({"tls": {"cert_file": "none.pem", "key_file": __file__}}, "none.pem: cannot be"),
        ({"tls": {"cert_file": __file__, "key_file": "none.pem"}}, "none.pem: cannot be"),
        (
            {"uris": ["ldaps://127.0.0.1"], "tls": {"ca_file": __file__}},
            "a file in the option tls cannot be used",
        ),
    ],
)
async def test_permanent_errors_stop_the_start(
    backend_of: Make, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(StartError) as caught:
        async with opened_backend(backend_of(**options)):
            pass
    assert message in str(caught.value)
    assert "wrong" not in str(caught.value)


async def test_search_without_a_base_is_no_missing_user(backend_of: Make) -> None:
    async with opened_backend(backend_of(bind=None, base_dn="")) as backend:
        result = await outcome(backend, ByNickname("alice"))
    assert str(result).startswith("broken: base_dn does not exist, or")


HIDDEN = f"access to dn.subtree={PEOPLE} by * none\naccess to * by * read"
NO_ENTRY = "the filter finds no entry for any value"


@pytest.mark.parametrize(
    ("acl", "scope"),
    [
        ("access to attrs=employeeNumber by * none\naccess to * by * read", "subtree"),
        (f"access to dn.children={PEOPLE} by * none\naccess to * by * read", "onelevel"),
        # The rights to attributes, also of base_dn, are lost.
        (f"access to dn.base={PEOPLE} attrs=entry by * read\n{HIDDEN}", "subtree"),
    ],
    ids=["attribute", "entries", "all"],
)
async def test_user_who_is_hidden_is_no_missing_user(
    backend_of: Make, tmp_path: Path, acl: str, scope: str
) -> None:
    with LdapServer(tmp_path / "server", options=acl) as server:
        async with opened_backend(backend_of(uris=[server.uri], bind=None, scope=scope)) as backend:
            for card in (ALICE.card_number, "5"):
                assert NO_ENTRY in await outcome(backend, ByCard(card))


async def test_limit_that_keeps_a_filter_from_being_tried_opens_no_breaker(
    backend_of: Make, tmp_path: Path
) -> None:
    """It is of no concern to users who exist; after one was found, others may be missing."""
    with LdapServer(tmp_path / "server", database="limits * size.unchecked=1") as server:
        async with opened_backend(backend_of(uris=[server.uri], bind=None)) as backend:
            with pytest.raises(Unavailable, match="exceeded a limit of the server") as caught:
                await backend.find(ByNickname("nobody"))
            assert not caught.value.counts_against_breaker
            assert await backend.find(ByNickname("alice")) == ALICE
            LoopClock().forward(1.0)
            assert await backend.find(ByNickname("nobody")) is None


@contextmanager
def connected(server: LdapServer) -> Iterator[Any]:
    handle = ldap.initialize(server.uri)
    handle.simple_bind_s(ADMIN, PASSWORD)
    yield handle
    handle.unbind_s()


@pytest.mark.parametrize(
    ("text", "expected", "compared"),
    [
        ("(uid={nickname})", "(uid=*)", "uid"),
        ("(&(a=b)(uid=x{nickname}y*))", "(&(a=b)(uid=*))", None),
        ("(|(uid={nickname})(cn=x{nickname}))", "(|(uid=*)(cn=*))", None),
        ("(|(uid={nickname})(cn:caseExactMatch:={nickname}))", "(|(uid=*)(cn=*))", None),
        ("(cn:dn:={nickname})", "(cn=*)", "cn"),
        ("(uid~={nickname})", "(uid=*)", None),
        ("(title;lang-en={nickname})", "(title;lang-en=*)", "title;lang-en"),
        ("(:caseExactMatch:={nickname})", "(objectClass=*)", None),
    ],
)
def test_filter_for_any_value(text: str, expected: str, compared: str | None) -> None:
    search = Search(text, [])
    assert (search.any, search.attribute) == (expected, compared)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("title == 'Pro' && uid == 'twins'", "broken: not_known_when: title has several values"),
        ("contains(to_array(title), 'Pro')", "not found"),
        ("title == 'Gold'", "broken: a wrong record: plan (title) is a list, not text"),
    ],
)
async def test_condition_on_several_values(backend_of: Make, condition: str, expected: str) -> None:
    """One that compares a single value is an error where another value would make it true."""
    response = {**RESPONSE, "not_known_when": condition}
    async with opened_backend(backend_of(response=response)) as backend:
        assert str(await outcome(backend, ByNickname("twins"))).startswith(expected)


async def test_tls(backend_of: Make, server: LdapServer, monkeypatch: pytest.MonkeyPatch) -> None:
    tls = {"ca_file": f"{server.folder}/ca.pem"}
    own = {**tls, "cert_file": f"{server.folder}/client.pem"}
    own["key_file"] = f"{server.folder}/client.key"
    monkeypatch.setenv("SSL_CERT_FILE", tls["ca_file"])
    for options in (
        {"uris": [server.tls_uri]},
        {"start_tls": True, "tls": tls},
        {"uris": [server.tls_uri], "tls": own, "bind": {"sasl": "external"}},
    ):
        async with opened_backend(backend_of(**options)) as backend:
            assert await backend.find(ByNickname("alice")) == ALICE


HOSTILE = {
    "LDAPTLS_REQCERT": "never",
    "LDAPTLS_CACERT": "/none",
    "LDAPDEREF": "always",
    "LDAPURI": "ldap://127.0.0.1:1",
}


def test_surroundings_change_nothing(server: LdapServer, tmp_path: Path) -> None:
    """libldap was loaded by an import above; a new process shows that it ignores them."""
    (tmp_path / ".ldaprc").write_text("TLS_REQCERT never\n")
    path = config_file(tmp_path, uris=[server.tls_uri], tls={"ca_file": f"{server.folder}/ca.pem"})
    untrusted = {"name": "other", "kind": "ldap", "uris": [server.tls_uri], **OPTIONS}
    path.write_text(f"{path.read_text()}  - {untrusted!r}\n")
    done = subprocess.run(
        [*COMMAND, "check", "-c", str(path)],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **HOSTILE, "HOME": str(tmp_path)},
    )
    assert "backend staff" not in done.stderr  # backends are opened in order
    assert f"backend other: {server.tls_uri}: the certificate is refused: " in done.stderr


async def test_alias_to_an_entry_outside_of_the_base_is_not_followed(
    server: LdapServer, backend_of: Make
) -> None:
    """Also not if LDAPDEREF of the environment is the default for new connections."""
    outside, alias = f"cn=zoe,{SUFFIX}", f"cn=zoe,{PEOPLE}"
    person = {"uid": b"zoe", "sn": b"x", "employeeNumber": b"8", "title": b"Pro"}
    with connected(server) as handle:
        handle.add_s(outside, [("objectClass", b"inetOrgPerson"), *person.items()])
        classes = [b"alias", b"extensibleObject"]
        handle.add_s(alias, [("objectClass", classes), ("aliasedObjectName", outside.encode())])
        ldap.set_option(ldap.OPT_DEREF, ldap.DEREF_ALWAYS)
        ldap.set_option(ldap.OPT_X_TLS_REQUIRE_CERT, ldap.OPT_X_TLS_NEVER)
        options = {"uris": [server.tls_uri], "tls": {"ca_file": f"{server.folder}/ca.pem"}}
        try:
            async with opened_backend(backend_of(**options)) as backend:
                assert await outcome(backend, ByNickname("zoe")) == "not found"
                used = backend._pool._open[0]._handle.get_option  # noqa: SLF001 - no other way to see
                names = "X_TLS_REQUIRE_CERT X_TLS_PROTOCOL_MIN REFERRALS NETWORK_TIMEOUT TIMEOUT"
                values = [used(getattr(ldap, f"OPT_{each}")) for each in names.split()]
                assert values == [ldap.OPT_X_TLS_DEMAND, 0x303, 0, 2.0, 2.0]
                assert used(ldap.OPT_X_KEEPALIVE_IDLE) == 60
        finally:
            ldap.set_option(ldap.OPT_DEREF, ldap.DEREF_NEVER)
            ldap.set_option(ldap.OPT_X_TLS_REQUIRE_CERT, ldap.OPT_X_TLS_DEMAND)
            handle.delete_s(alias)
            handle.delete_s(outside)


def test_refused_certificate_is_explained(invoke: Invoke, tmp_path: Path) -> None:
    server = LdapServer(tmp_path / "server", [])
    server.certify("other.example")
    with server:
        away = f"ldap://127.0.0.1:{free_port()}"
        tls = {"ca_file": f"{server.folder}/ca.pem"}
        path = config_file(tmp_path, uris=[server.uri, away], start_tls=True, tls=tls)
        done = invoke("lookup", "@alice", "--steps", "-c", path)
    assert done.exit_code == 3
    assert "IP address mismatch, certificate is not valid for '127.0.0.1'" in done.output
    assert f"; {away}: the server cannot be reached" in done.output
    assert PASSWORD not in done.output


def config_file(folder: Path, config: str = CONFIG, **options: Any) -> Path:
    path = folder / "config.yaml"
    backend = {"name": "staff", "kind": "ldap", **OPTIONS, **options}
    path.write_text(f"{config}  - {backend!r}\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("who", "result"),
    [
        ("@alice", (0, "found", 'plan              title  ->  "Pro"\n')),
        ("@bob", (0, "found", "plan              title  ->  null (mapped to Free)\n")),
        ("@ALICE", (3, "a user other than requested; nickname_case may be the reason", "")),
        ("@stranger", (1, "not known here", f"(uid=stranger) below {PEOPLE} (subtree)\n")),
        ("@disabled", (1, "not known here", "->  true\n")),
        ("@twins", (3, "plan (title) is a list, not text", "title  ->  a list of 2\n")),
    ],
)
def test_every_step_is_shown(
    invoke: Invoke, server: LdapServer, tmp_path: Path, who: str, result: tuple[int, str, str]
) -> None:
    code, outcome, shown = result
    unreachable = f"ldap://127.0.0.1:{free_port()}"
    path = config_file(tmp_path, uris=[unreachable, server.uri])
    done = invoke("lookup", who, "--steps", "-c", path)
    assert done.exit_code == code
    assert f"{outcome} (" in done.output
    assert shown in done.output
    assert f"    server            {unreachable}: the server cannot be reached" in done.output
    assert f"    server            {server.uri}: connected and bound\n    search  " in done.output
    assert PASSWORD not in done.output


NOWHERE = ldap.initialize("ldapi://%2Fnone")


@given(st.text(st.characters(codec="utf-8"), max_size=64))
def test_no_value_leaves_its_place_in_the_filter(value: str) -> None:
    """libldap parses the filter, and the value occurs in it escaped, as RFC 4515 requires."""
    rendered = Search("(&(objectClass=person)(uid={nickname}))", []).render(value)
    inner = rendered.removeprefix("(&(objectClass=person)(uid=").removesuffix("))")
    assert not set(inner) & set("()*\0")
    with pytest.raises(ldap.SERVER_DOWN):
        NOWHERE.search_ext("", ldap.SCOPE_BASE, rendered)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"uris": ["ldap://localhost.example"]}, "is plain text: write ldaps://, start_tls: true"),
        ({"uris": ["ldap://[fe80::1]"]}, "is plain text: write ldaps://, start_tls: true or"),
        ({"uris": ["ldaps://dc1/dc=x??sub"]}, "must be like ldaps://dc1.example.org"),
        ({"uris": ["ldaps://dc1"], "start_tls": True}, "start_tls is for ldap://"),
        ({"uris": ["ldap://a", "ldaps://b"], "start_tls": True}, "start_tls is for ldap://"),
        ({"bind": {"dn": "cn=a"}}, "write dn and password, or sasl: external"),
        ({"bind": {"dn": "cn=a", "sasl": "external"}}, "write dn and password, or sasl: external"),
        (
            {"bind": {"dn": "cn=a", "password": "b", "sasl": "external"}},
            "write dn and password, or",
        ),
        ({"bind": {"dn": "cn=a", "password": ""}}, "password is empty"),
        (
            {"by_card": {"filter": "(a={card_number}{nickname})"}},
            "must have the placeholder {card_",
        ),
        ({"by_card": {"filter": "a={card_number}"}}, "must be a filter in parentheses"),
        ({"by_card": {"filter": "((a={card_number})"}}, "must be a filter in parentheses"),
        ({"by_nickname": {"filter": "(a:CASEEXACTMATCH:={nickname})"}}, "nickname_case is fold"),
        ({"by_nickname": {"filter": "(a:dn:2.5.13.5:={nickname})"}}, "nickname_case is fold"),
        ({"by_nickname": {"filter": "(a:dn:2.5.13.17:={nickname})"}}, "nickname_case is fold"),
        ({"by_nickname": {"filter": "(|(a={nickname})(b:octetStringMatch:={nickname}))"}}, "fold"),
        ({"by_nickname": {"filter": "(a:1.3.6.1.4.1.1466.109.114.1:={nickname})"}}, "is fold"),
        ({"base_dn": "\ud800"}, "base_dn has a lone surrogate"),
        ({"uris": []}, "at least 1 item"),
        ({"by_card": None, "by_nickname": None}, "a search is missing"),
        ({"tls": {"cert_file": "a"}}, "cert_file and key_file belong together"),
        ({"tls": {"key_file": "a"}}, "cert_file and key_file belong together"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    given = {"name": "staff", "kind": "ldap", "uris": ["ldap://127.0.0.1"], **OPTIONS, **options}
    with pytest.raises(ValidationError) as caught:
        LdapOptions.model_validate(given, context={"nickname_case": "fold"})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("who", "nickname"), [("@carol", "@carol"), ("6", "@carol"), ("@caroline", None)]
)
def test_recipe_for_entries_with_several_uids(
    invoke: Invoke, server: LdapServer, tmp_path: Path, who: str, nickname: str | None
) -> None:
    path = config_file(
        tmp_path,
        uris=[server.uri],
        by_nickname={"filter": f"(&(uid={{nickname}})(entryDN=uid={{nickname}},{PEOPLE}))"},
        response={**RESPONSE, "nickname": "trim_prefix(split(entryDN, ',')[0], 'uid=')"},
    )
    done = invoke("lookup", who, "-c", path, "--json")
    assert json.loads(done.output).get("nickname") == nickname
    assert done.exit_code == (1 if nickname is None else 0)


@pytest.mark.parametrize(
    ("scheme", "options", "workers"),
    [
        ("ldap", {}, 1),
        ("ldap", {"start_tls": True}, 1),
        ("ldaps", {"bind": {"sasl": "external"}}, 2),
    ],
)
def test_stop_does_not_wait_for_a_server_that_accepts_and_does_not_respond(
    tmp_path: Path, scheme: str, options: dict[str, Any], workers: int
) -> None:
    """Neither does the next attempt to connect, and none leaves its connection open."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as hung:
        uri = f"{scheme}://127.0.0.1:{hung.getsockname()[1]}"
        config = CONFIG.replace("server: {", f"server: {{workers: {workers}, ")
        path = config_file(tmp_path, config, uris=[uri, uri], connect_timeout="300ms", **options)
        with running(path) as service:
            hung.settimeout(10)
            accepted = [hung.accept()[0] for _ in range(3)]
            accepted[0].settimeout(10)
            while accepted[0].recv(4096):
                pass
            sent = time.monotonic()
            service.send_signal(signal.SIGTERM)
            code = service.wait()
            assert time.monotonic() - sent < 5  # 0.1 s on an idle machine
            for each in accepted:
                each.close()
    assert code == 0
