"""URLs of PostgreSQL, Redis and LDAP servers: what is one, and how messages call it."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from idv_ldap.options import LdapOptions
from idv_postgres.options import Dsn
from idv_redis.options import check_url
from support.databases.ldap_server import OPTIONS
from support.processes.process import Invoke

DSNS: dict[str, tuple[list[str], str]] = {
    "postgresql://h": (["postgresql://h"], "postgresql://h"),
    "postgres://h/x": (["postgres://h/x"], "postgresql://h/x"),
    "POSTGRESQL://u@h:5432/": (["POSTGRESQL://u@h:5432/"], "postgresql://h:5432/"),
    "postgresql:///x?host=/run": (["postgresql:///x?host=/run"], "postgresql:///x"),
    "postgresql://u:p:q@h,k:2,[::1]:3/x?sslmode=require": (
        [f"postgresql://u:p:q@{each}/x?sslmode=require" for each in ("h", "k:2", "[::1]:3")],
        "postgresql://h,k:2,[::1]:3/x",
    ),
    "postgresql://u:%2F%40%3f@%2Fvar%2Frun/a%2Fb": (
        ["postgresql://u:%2F%40%3f@%2Fvar%2Frun/a%2Fb"],
        "postgresql://%2Fvar%2Frun/a%2Fb",
    ),
    "postgresql://u:!$&'()*+,;=~ é@h?password=a/b?c": (
        ["postgresql://u:!$&'()*+,;=~ é@h?password=a/b?c"],
        "postgresql://h",
    ),
}
NO_DSNS = (
    *("h", "postgresql:h", "mysql://h", " postgresql://h", "postgresql://h:p/x", "postgresql://h:123456/x"),
    *("postgresql://h,k:p/x", "postgresql://u:p@k@h/x", "postgresql://u:p/q@h/x", "postgresql://u:p?q@h/x"),
    *("postgresql://u:p#q@h/x", "postgresql://u:p[q@h/x", "postgresql://u:p@h/x#", "postgresql://[h"),
    *("postgresql://u:p@k?q=1@h/x", "postgresql://h?p", "postgresql://[[]", "postgresql://u:p@h,\u2100/x"),
    *("postgresql://h/x?sslmode=on", "postgresql://h/x?target_session_attrs=master"),
)  # fmt: skip


@pytest.mark.parametrize("text", DSNS)
def test_uri_of_postgresql_is_tried_host_by_host_and_named_without_its_user(text: str) -> None:
    dsn = Dsn.parse(text)
    assert (list(dsn.uris.values()), dsn.name) == DSNS[text]


@pytest.mark.parametrize("text", NO_DSNS)
def test_anything_else_is_no_uri_of_postgresql(text: str) -> None:
    with pytest.raises(ValueError, match=r"^not a connection URI|^\w+ must be one of") as caught:
        Dsn.parse(text)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "text",
    [
        *("rediss://h:1", "redis://u:p:q@h:65535/15", "redis://h/", "redis://u:!$&'()*+,;=~ é@h"),
        *("redis://u:%2F%40@[::1]:6379/0?socket_timeout=1", "redis://h?password=a/b?c"),
        *("unix:///run/redis", "unix://u:p@/run/redis?db=1"),
    ],
)  # fmt: skip
def test_url_of_redis_is_accepted(text: str) -> None:
    check_url(SecretStr(text))


@pytest.mark.parametrize(
    "text",
    [
        *("h", "http://h", "REDIS://h", "redis://", "redis:///0", "redis://h:p/0", "redis://h:65536"),
        *("redis://h/x", "redis://u:p@k@h", "redis://u:1/2@h", "redis://u:1?q@h", "redis://u:p#q@h"),
        *("redis://h/0@k", "redis://u:p[q@h", "redis://[h", "unix://", "unix://p/q@/r", "unix:///a@b"),
        *("unix:///a#b", "redis://h?p=q@k", "redis://h:0"),
    ],
)  # fmt: skip
def test_anything_else_is_no_url_of_redis(text: str) -> None:
    with pytest.raises(ValueError, match=r"^not a URL of a Redis server"):
        check_url(SecretStr(text))


@pytest.mark.parametrize(
    "text", ["ldap://h:0", "ldaps://h:65536", "ldap://[", "ldap://[1.2.3.4]", "ldaps://[::::]"]
)
def test_uri_of_ldap_has_a_port_and_an_address_that_can_be_used(text: str) -> None:
    with pytest.raises(ValidationError, match=r"must be like ldaps://dc1\.example\.org"):
        LdapOptions.model_validate({"uris": [text]})


@pytest.mark.parametrize(
    ("text", "uri", "options"),
    [
        ("ldap://localhost/", "ldap://localhost:389", {}),
        ("ldap://[::1]", "ldap://[::1]:389", {"by_nickname": None}),
        ("ldaps://h", "ldaps://h:636", {}),
        ("ldap://h:1", "ldap://h:1", {"insecure": True}),
    ],
)
def test_uri_of_ldap_without_tls_is_for_this_machine_or_insecure(
    text: str, uri: str, options: dict[str, Any]
) -> None:
    given = {**OPTIONS, "name": "a", "kind": "ldap", "uris": [text], **options}
    parsed = LdapOptions.model_validate(given, context={"nickname_case": "fold"})
    assert parsed.uris == (uri,)


@pytest.mark.parametrize(
    "query", ["port=zeugma", "host=h:zeugma", "ssl_min_protocol_version=zeugma"]
)
@pytest.mark.parametrize("command", ["users count --from a", "postgres init --apply", "check"])
def test_part_of_a_uri_that_the_driver_refuses_is_not_shown(
    tmp_path: Path, invoke: Invoke, command: str, query: str
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "profile_sites: [https://profiles.example]\n"
        f"backends: [{{name: a, kind: postgres, dsn: 'postgresql:///x?{query}&sslmode=require'}}]\n"
    )
    result = invoke(*command.split(), "-c", path)
    assert result.exit_code != 0
    assert "the dsn cannot be used" in result.output
    assert "zeugma" not in result.output
