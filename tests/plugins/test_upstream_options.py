"""The options of an upstream, and their documentation."""

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError
from yarl import URL

import idv_upstream
from idv_upstream.backend import UpstreamBackend
from idv_upstream.options import UpstreamOptions
from idv_upstream.request.options import NicknameRequest
from idv_upstream.response.options import ResponseOptions
from idv_upstream.transport.credentials import Credential, LoginRequest
from idv_upstream.transport.tls import TlsOptions
from support.databases.upstream_backends import PLAIN
from tornado_idv import BackendOptions, ByCard, ByNickname
from tornado_idv.config.load import ConfigFile
from tornado_idv.kit.mapping import FieldOptions
from tornado_idv.registry import installed_kinds, plugin_manager

README = (Path(idv_upstream.__file__).parent / "README.md").read_text(encoding="utf-8")


def options(**members: Any) -> UpstreamOptions:
    return UpstreamOptions.model_validate({"name": "crm", "kind": "upstream", **members})


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("https://directory.example/", "https://directory.example"),
        ("https://directory.example/a/b-c_d.~/", "https://directory.example/a/b-c_d.~"),
        ("http://[::1]:80", "http://[::1]:80"),
        ("http://idv_users:8080", "http://idv_users:8080"),
        ("http://directory.example.:80", "http://directory.example.:80"),
    ],
)
def test_base_url_is_kept_without_its_last_slash(written: str, kept: str) -> None:
    assert options(base_url=written).base_url == kept


@pytest.mark.parametrize(
    "written",
    [
        "",
        "ftp://directory.example",
        "http://canary:secret@host",
        "http://host/a?",
        "http://host?a",
        "http://host/a//b",
        "http://host/./b",
        "http://host/..",
        "http://host:65536",
        "http://host:0",
        "http://xn--a",
        "http://[:::]",
        "http://host:\uff18\uff10",
    ],
)
def test_invalid_base_url_is_rejected_without_repeating_it(written: str) -> None:
    """It may hold a password."""
    with pytest.raises(ValidationError) as caught:
        options(**{**MAPPED, "base_url": written})
    (problem,) = caught.value.errors()
    assert problem["loc"] == ("base_url",)
    assert problem["msg"].startswith("Value error, not a valid base URL; write")
    assert "canary" not in problem["msg"] + str(caught.value)


def test_readme_documents_every_option() -> None:
    own = UpstreamOptions.model_fields.keys() - BackendOptions.model_fields.keys()
    sections: dict[str, list[Any]] = {
        "by_nickname": [NicknameRequest],
        "response": [ResponseOptions],
        "response.plan": [FieldOptions],
        "auth": list(get_args(get_args(Credential)[0])),
        "auth.login": [LoginRequest],
        "tls": [TlsOptions],
    }
    members = {
        f"{section}.{field.alias or name}"
        for section, models in sections.items()
        for model in models
        for name, field in model.model_fields.items()
    }
    cells = re.findall(r"^\| ([^|]*) \|", README, re.MULTILINE)
    reported = {name for cell in cells for name in re.findall(r"`([a-z_.]+)`", cell)}
    assert own | members <= reported
    assert {name for name in reported if name.partition(".")[0] in own} == own | members


BY_NICKNAME = {"url": "/{nickname}"}
MAPPED: dict[str, Any] = {"base_url": "http://a", "by_nickname": BY_NICKNAME, "response": PLAIN}
WITH_HEADER = MAPPED | {"by_nickname": {**BY_NICKNAME, "headers": {"X-Request-Id": "a"}}}


def with_second(second: dict[str, Any], first: str = "/c/{card_number}") -> dict[str, Any]:
    """Options for a lookup in two steps."""
    by_card = {"url": first, "then": second}
    return {"base_url": "http://a", "by_card": by_card, "response": {**PLAIN, "id": "owner"}}


SECOND = {"url": "/u/{id}"}
NO_ECHO = {"plan": "plan", "id": "owner", "check_echo": "false"}
WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({}, "", "needs base_url, or by_nickname and by_card with complete URLs"),
    ({"endpoints": ["http://a"]}, "", "the option endpoints was removed, because one endpoint"),
    (MAPPED | {"base_url": None}, "by_nickname", "url must be absolute if base_url is not set"),
    (with_second(SECOND, "http://x/{card_number}") | {"base_url": None}, "by_card", "url must be"),
    (MAPPED | {"response": None}, "", "response is missing; write the mapping from a response to"),
    (MAPPED | {"by_nickname": None}, "", "a request is missing; write by_nickname or by_card"),
    ({"base_url": "http://a", "status": {404: "broken"}}, "", "a request is missing; write"),
    (with_second(SECOND) | {"response": None}, "", "response is missing; write"),
    (MAPPED | {"status": {199: "read"}}, "status.199.[key]", "greater than or equal to 200"),
    (
        MAPPED | {"response": NO_ECHO | {"nickname": "a"}},
        "",
        "card_number is required for lookups by n",
    ),
    (with_second(SECOND) | {"response": NO_ECHO | {"card_number": "a"}}, "", "response.nickname"),
    (with_second(SECOND) | {"response": PLAIN}, "", "response.id is missing; the second request"),
    (WITH_HEADER | {"forward": ["x-request-id"]}, "", "forward and headers both set x-request-id"),
    (
        with_second({**SECOND, "headers": {"X-Request-ID": "1"}}) | {"forward": ["x-request-id"]},
        "",
        "forward and headers both set x-request-id",
    ),
    *(
        (
            WITH_HEADER | {"forward": ["traceparent"], "echo_header": name},
            "",
            "echo_header is reserved, or set by headers or forward; rename it",
        )
        for name in ("x-request-id", "Traceparent", "Content-Length")
    ),
    (
        MAPPED | {"by_nickname": {"url": "/{nick}"}},
        "by_nickname.url",
        "an unknown placeholder at column 2; allowed here: {nickname}",
    ),
    (
        with_second({"url": "/u/{card_number}"}),
        "by_card.then.url",
        "an unknown placeholder at column 4; allowed here: {id}, {profile_site}",
    ),
]


@pytest.mark.parametrize(("members", "place", "reported"), WRONG)
def test_inconsistent_options_are_reported_at_their_place(
    members: dict[str, Any], place: str, reported: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        options(**members)
    (problem,) = caught.value.errors()
    assert ".".join(map(str, problem["loc"])) == place
    assert reported in problem["msg"]


def test_credential_or_client_certificate_counts_as_credential() -> None:
    assert not options(base_url="http://host").has_credential
    auth = {"kind": "bearer", "token": "canary"}
    assert options(base_url="http://host", auth=auth).has_credential
    assert options(base_url="https://host", tls={"cert_file": __file__}).has_credential


def test_backend_serves_the_kinds_of_query_that_have_a_request() -> None:
    asked = {"by_card": {"url": "http://host/{card_number}"}}
    assert UpstreamBackend(options(**asked, response=PLAIN)).serves == {ByCard}
    assert UpstreamBackend(options(base_url="http://host")).serves == {ByCard, ByNickname}


def test_options_of_another_instance_may_be_overridden() -> None:
    given = options(base_url="http://host", echo_header="X-Own", timeout="5s")
    assert UpstreamBackend(given).sender.echo_header == "X-Own"
    assert UpstreamBackend(given).sender.timeout == 5


def test_first_profile_site_is_a_placeholder(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "profile_sites: [HTTPS://Profiles.example:443/, https://other.example]\n"
        "backends:\n  - name: crm\n    kind: upstream\n    base_url: http://host\n"
        '    by_nickname: {url: "/", query: {page: "{profile_url}", site: "{profile_site}"},\n'
        '      then: {url: "/{id}", headers: {X-Site: "{profile_site}"}}}\n'
        "    response: {id: id, plan: plan, card_number: card, nickname: login}\n"
    )
    (given,) = ConfigFile.read(path).load(installed_kinds(plugin_manager()), {}).backends
    first, second = UpstreamBackend(given).templates[ByNickname]
    assert second.render("1").headers == {"X-Site": "https://profiles.example"}
    assert URL(first.render("al").url, encoded=True).query == {
        "page": "https://profiles.example/m/al",
        "site": "https://profiles.example",
    }


PAGED = {"match": "echo", "select": "users"}
COMPLETE = {**PAGED, "complete_when": "total == length(users)"}
FAIR: dict[str, dict[str, Any]] = {
    "a code of not found": {"found_when": "error != 'E_NOUSER'"},
    "a total": {"found_when": "total != `0`"},
    "an error or data": {
        "broken_when": "errors || !data || !contains(keys(data), 'found')",
        "found_when": "data.found",
    },
    "a list of GraphQL": {"broken_when": "errors || !data", "select": "data.found"},
    "a record that is disabled": {"not_known_when": "error == 'no user' || state == 'disabled'"},
    "a filter on a record": {"not_known_when": "roles[?name == 'none']"},
    "a flag of a record": {"not_known_when": "active == `false`"},
    "a quoted name": {"broken_when": """"error-code" == 'BUSY'"""},
    "the whole document": {"found_when": "@"},
    "a complete list": COMPLETE,
}


def warnings_of(response: dict[str, Any]) -> list[str]:
    return list(ResponseOptions.model_validate({**PLAIN, **response}).warnings())


HIDING: list[tuple[dict[str, Any], str]] = [
    *(
        ({"found_when": text}, f"response.found_when ({text}) is false not only for missing users")
        for text in (
            "ok",
            "!error",
            "total > `0`",
            "status == 'ok'",
            'error != "E_NOUSER"',
            "errors || !data || data.found",
            "error.code != data.code",
        )
    ),
    *(
        ({"not_known_when": text}, f"response.not_known_when ({text}) is true not only")
        for text in ("state != 'active'", "!(user.active)", 'error == "no_user"')
    ),
    ({"not_known_when": "a != 'b'", "broken_when": "a != 'b'"}, "response.not_known_when (a != "),
    ({"select": "users || `[]`"}, "response.select (users || `[]`) gives an empty list not"),
    ({"select": "items[?state == 'active']"}, "response.select (items[?state == 'active']) has a "),
    ({"select": "hits || items[?active]"}, "response.select (hits || items[?active]) has a filter"),
    ({"found_when": "!items || items[?a]"}, "response.found_when (!items || items[?a]) has a filt"),
    ({"broken_when": 'code == "BUSY"'}, 'code == "BUSY" compares with a member'),
    ({"unavailable_when": 'ok && code!="OK"'}, 'ok && code!="OK" compares with a member'),
    (PAGED, "response.match is echo without complete_when"),
    ({**PAGED, "complete_when": "ok"}, "response.complete_when (ok) has no =="),
    ({"complete_when": "a >= b"}, "response.complete_when (a >= b) has no =="),
]


@pytest.mark.parametrize(("response", "start"), HIDING, ids=str)
def test_condition_that_may_hide_users_is_warned_of(response: dict[str, Any], start: str) -> None:
    """With it, a response such as `{"ok": false, "error": "busy"}` would be "not found"."""
    (warning,) = warnings_of(response)
    assert warning.startswith(start)


def gql(query: str) -> str:
    return json.dumps({"query": f"query {query}", "variables": {"n": "{nickname}"}})


SIZES: list[tuple[dict[str, Any], str | None]] = [
    *(({"url": f"/u?q={{nickname}}&{size}"}, "one") for size in (
        "limit=1", "page[size]=1", "page%5Bsize%5D=1", "hitsPerPage=1", "rows=1", "take=1", "num=1",
        "maxRecords=1", "per_page=1", "items_per_page=1", "limitToFirst=1", "limitToLast=1",
    )),
    *(({"url": f"/u?q={{nickname}}&{size}"}, "no") for size in (
        "limit=1&count=0",
    )),
    *(({"url": f"/u?q={{nickname}}&{size}"}, None) for size in (
        "limit=2", "limit=1.5", "limit=1%30", "limit=10&page=1", "discount=1",
    )),
    ({"url": "/u", "query": {"name": "{nickname}", "$top": "1"}}, "one"),
    ({"url": "/u", "form": {"q": "{nickname}", "maxResults": "1"}}, "one"),
    ({"url": "/c/{nickname}", "then": {"url": "/u?id={id}&limit=1"}}, "one"),
    *(({"url": "/u", "json": body}, size) for body, size in (
        ('{"q": "{nickname}", "page_size": 1}', "one"),
        ('{"query": "SELECT * FROM u WHERE n = \'{nickname}\' LIMIT 1"}', "one"),
        (gql("{{ u(n: $n, last: 1) {{ id }} }}"), "one"),
        (gql("{{ u(n: $n, first: 0) {{ id }} }}"), "no"),
        (gql("($k: Int = 2) {{ u(n: $n, first: $k) {{ id }} }}"), None),
    )),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "size"), SIZES, ids=str)
def test_page_of_one_or_no_user_is_warned_of(request_: dict[str, Any], size: str | None) -> None:
    """One is enough for a backend that wants the first."""
    given: dict[str, Any] = {"by_nickname": request_, "status": {404: "broken"}, "id": "id"}
    starts = [f"by_nickname requests a page of {size} user"] * (size is not None)
    for more in ({"pick": "one"}, {"pick": "first"}, {"complete_when": "a == b"}):
        warnings = request_warnings(**given, **more)
        assert [each.partition("user")[0] + "user" for each in warnings] == starts
        starts = [each for each in starts if size == "no"]


def request_warnings(**members: Any) -> list[str]:
    names = ("pick", "not_known_when", "id", "complete_when")
    taken = {name: members.pop(name) for name in names if name in members}
    given = {"by_nickname": {"url": "/{nickname}"}, **members, "base_url": "http://x"}
    return list(options(**given, response={**PLAIN, **taken}).warnings())


@pytest.mark.parametrize(
    ("members", "statuses"),
    [
        ({"status": {410: "broken"}}, "404"),
        ({"status": {400: "not_known"}}, "400, 404"),
        ({"status": {400: "not_known", 404: "broken"}}, "400"),
        ({"status": {204: "not_known"}}, "404"),
    ],
)
def test_any_404_as_not_found_is_warned_of(members: dict[str, Any], statuses: str) -> None:
    (warning,) = request_warnings(**members)
    assert warning.startswith(f'each response of status {statuses} is read as "not found"')
    assert request_warnings(**members, not_known_when="error == 'no user'") == []


def test_404_that_is_not_believed_or_of_another_instance_is_not_warned_of() -> None:
    for meant in ("broken", "unavailable", "read"):
        assert request_warnings(status={404: meant}) == []
    assert list(options(base_url="http://x").warnings()) == []


@pytest.mark.parametrize(
    ("members", "warns"),
    [
        ({"base_url": "http://x"}, True),
        (MAPPED | {"status": {404: "broken"}}, True),
        (with_second(SECOND) | {"status": {404: "broken"}}, False),
    ],
)
def test_folded_nicknames_are_warned_of(members: dict[str, Any], *, warns: bool) -> None:
    """A directory that distinguishes case would not find users with capitals."""
    given = {"name": "crm", "kind": "upstream", **members}
    folding = UpstreamOptions.model_validate(given, context={"nickname_case": "fold"})
    starts = [each.partition(" (")[0] for each in folding.warnings()]
    assert starts == ["nicknames are requested in lower case"] * warns


@pytest.mark.parametrize("name", ["broken_when", "unavailable_when"])
@pytest.mark.parametrize("hiding", [{"found_when": "hits"}, {"select": "hits || `[]`"}])
def test_condition_for_errors_and_missing_members_leaves_no_warning(
    name: str, hiding: dict[str, str]
) -> None:
    """For errors alone it does not: a response without the member may be of another kind."""
    (warning,) = warnings_of({name: "status != 'ok'", **hiding})
    assert "without the members of the expression" in warning
    both = "status != 'ok' || !contains(keys(@), 'hits')"
    assert warnings_of({name: both, **hiding}) == []


@pytest.mark.parametrize("response", FAIR.values(), ids=FAIR)
def test_expression_that_hides_nothing_is_not_warned_of(response: dict[str, Any]) -> None:
    assert warnings_of(response) == []
